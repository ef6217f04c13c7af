package raftfsm

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// A leader's own disk writes an entry while the followers' do, not before (Ongaro's thesis, 10.2.1): raft calls StoreLogs
// before it replicates, so at the leader that returns at once, and a goroutine writes what was accepted, all that
// waits with one fsync. raft then counts the leader's copy before it is on disk. What makes this safe:
//
//   - nothing is applied (and so nothing is answered) at the leader before its own disk has it (fsm.durable);
//   - no follower is told that an entry is committed before the leader's disk has it (transport, commitCap). So an
//     entry that anybody has applied is on the disks of a majority, the leader's among them;
//   - an entry that was lost with the process was on this disk for nobody: the peer comes back as one whose log
//     ends earlier, which its term and vote, on disk as ever, allow;
//   - a peer that led, and now follows with entries still unwritten, may say that it has those. That commits nothing: they
//     are of its own former term, and a new leader counts entries of its own term only, which are written
//     in order behind them before they are confirmed;
//   - what raft itself acts upon (configurations, barriers, the first entry of a term) is written as before.
//
// A failed write makes the next append fail, which makes raft step down; what was accepted is written again until
// it is on disk, before anything else.

const (
	// aheadBytes bounds what is accepted ahead of the disk.
	aheadBytes = 8 << 20
	// rewriteAfter spaces attempts to write what failed.
	rewriteAfter = 100 * time.Millisecond
)

var errLogClosed = errors.New("the raft log is closed")

// commandsOnly tells whether raft does not act upon any of es itself.
func commandsOnly(es []*raft.Log) bool {
	for _, e := range es {
		if e.Type != raft.LogCommand {
			return false
		}
	}
	return true
}

// accept takes es to be written soon.
func (s *logStore) accept(es []*raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.unwrittenBytes >= aheadBytes && s.failed == nil && !s.closed {
		s.moved.Wait()
	}
	switch {
	case s.closed:
		return errLogClosed
	case s.failed != nil:
		return s.failed
	}
	for _, e := range es {
		s.unwritten = append(s.unwritten, s.put(e))
		s.unwrittenBytes += len(e.Data)
	}
	s.volatile.Store(s.unwritten[0].Index)
	s.write()
	return nil
}

// write has a goroutine write what was accepted, unless one does. Called with mu held.
func (s *logStore) write() {
	if s.writing || s.closed || len(s.unwritten) == 0 {
		return
	}
	s.writing = true
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.unwritten) > 0 && !s.closed {
			batch := s.unwritten[:len(s.unwritten):len(s.unwritten)]
			s.mu.Unlock()
			err := s.append(batch)
			s.mu.Lock()
			if s.failed = err; err != nil {
				s.failures++
				time.AfterFunc(rewriteAfter, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.write()
				})
				if s.onFailed != nil {
					go s.onFailed()
				}
				break
			}
			for _, e := range batch {
				s.unwrittenBytes -= len(e.Data)
			}
			s.unwritten = s.unwritten[len(batch):]
			var first uint64
			if len(s.unwritten) > 0 {
				first = s.unwritten[0].Index
			} else {
				s.unwritten = nil
			}
			s.volatile.Store(first)
			s.moved.Broadcast()
		}
		s.writing = false
		s.moved.Broadcast()
	}()
}

// settle returns when all that was accepted up to index is on disk.
func (s *logStore) settle(index uint64) error {
	if v := s.volatile.Load(); v == 0 || v > index {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := s.failures
	s.write()
	for len(s.unwritten) > 0 && s.unwritten[0].Index <= index {
		switch {
		case s.closed:
			return errLogClosed
		case s.failures != failures:
			return s.failed
		}
		s.moved.Wait()
	}
	return nil
}

// durable waits until the entry at index is on disk, however often writing it fails; errLogClosed ends the wait.
func (s *logStore) durable(index uint64) error {
	for {
		err := s.settle(index)
		if err == nil || errors.Is(err, errLogClosed) {
			return err
		}
		s.mu.Lock()
		for s.failed != nil && !s.closed && len(s.unwritten) > 0 && s.unwritten[0].Index <= index {
			s.moved.Wait()
		}
		s.mu.Unlock()
	}
}

// commitCap is index, or the last index that is on disk here if that is less.
func (s *logStore) commitCap(index uint64) uint64 {
	if v := s.volatile.Load(); v != 0 && v <= index {
		return v - 1
	}
	return index
}

// close ends the waits and returns whether no write is under way any more, for which it waits a while.
func (s *logStore) close(wait time.Duration) bool {
	timeout := time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gaveUp = true
		s.moved.Broadcast()
	})
	defer timeout.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.moved.Broadcast()
	for s.writing && !s.gaveUp {
		s.moved.Wait()
	}
	return !s.writing
}
