package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A leader's entry is on the followers' disks while its own disk still writes it, and until that has it nobody applies
// or answers it, at the leader or at a follower.
func TestLeaderWritesWhileItReplicates(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) {
		c.DiskStall, c.DiskDeadline = time.Hour, time.Hour
		withStallLog(c)
	})
	l, fs := c.leader(), c.followers()
	l.put(t, "x", "0")
	c.sameState()
	for i, p := range []*peer{l, fs[0]} {
		before, after := fmt.Sprint(i), fmt.Sprint(i+1)
		release := l.log0(t).stall()
		defer release()
		answer := make(chan error, 1)
		go func() {
			_, err := p.Propose(c.ctx(), putReq("x", after))
			answer <- err
		}()
		c.until("the proposal is in the followers' logs", func() bool {
			last := l.raft.LastIndex()
			return l.logs.volatile.Load() == last && fs[0].raft.LastIndex() == last && fs[1].raft.LastIndex() == last
		})
		c.until("raft at the leader takes it for committed", func() bool { return l.raft.CommitIndex() == l.raft.LastIndex() })
		for _, q := range c.peers {
			if got := q.get(t, "x"); got != before {
				t.Fatalf("%s applied x = %q before the leader's disk had it", q.cfg.Name, got)
			}
			if q != l && q.raft.CommitIndex() >= l.logs.volatile.Load() {
				t.Fatalf("%s was told that %d is committed; the leader's disk lacks it", q.cfg.Name, q.raft.CommitIndex())
			}
		}
		select {
		case err := <-answer:
			t.Fatalf("%s answered before the leader's disk had the entry: %v", p.cfg.Name, err)
		default:
		}
		release()
		if err := <-answer; err != nil {
			t.Fatalf("%s: %v", p.cfg.Name, err)
		}
		c.sameState()
	}
}

// volatileCount is how many entries were accepted and are not on disk.
func (s *logStore) volatileCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unwritten)
}

// A leader whose disk has no space steps down, and what it accepted reaches its disk once that has space again.
func TestLeaderDiskFullWhileItReplicates(t *testing.T) {
	c := newCluster(t, 3, withStallLog)
	l := c.leader()
	l.put(t, "x", "0")
	term := l.raft.CurrentTerm()
	l.log0(t).fail(syscall.ENOSPC)
	for _, p := range c.followers() {
		p.put(t, "x", p.cfg.Name) // another leads before this is answered
	}
	if l.raft.CurrentTerm() == term {
		t.Fatal("the leader did not step down when its disk was full")
	}
	l.log0(t).fail(nil)
	c.until("the former leader has written what it had accepted", func() bool { return l.logs.volatileCount() == 0 })
	l.put(t, "y", "1")
	c.sameState()
}

// The states of one log, without raft.
func TestLogAheadOfTheDisk(t *testing.T) {
	disk := newDiskWatch(&Config{DiskSlow: time.Hour, DiskStall: time.Hour, DiskDeadline: time.Hour, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}, nil)
	on := &stallLog{LogStore: raft.NewInmemStore()}
	s := newLogStore(on, disk, func(err error) { t.Error(err) })
	failed := make(chan struct{}, 100)
	s.onFailed = func() { failed <- struct{}{} }
	entry := func(i uint64) *raft.Log {
		return &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: []byte("data")}
	}
	store := func(i uint64) error { return s.StoreLogs([]*raft.Log{entry(i)}) }

	if err := store(1); err != nil {
		t.Fatal(err)
	}
	s.leading = func() bool { return true }
	release := on.stall()
	for i := uint64(2); i <= 4; i++ {
		if err := store(i); err != nil {
			t.Fatal(err)
		}
	}
	if last, err := s.LastIndex(); last != 4 || err != nil {
		t.Fatalf("last index %d, %v", last, err)
	}
	if got := s.commitCap(4); got != 1 {
		t.Fatalf("commit index 4 is told as %d while the disk ends at 1", got)
	}
	var e raft.Log
	if err := s.GetLog(3, &e); err != nil || e.Index != 3 {
		t.Fatalf("entry 3 while it is written: %v, %v", e.Index, err)
	}
	release()
	if err := s.durable(4); err != nil {
		t.Fatal(err)
	}
	if got := s.commitCap(4); got != 4 {
		t.Fatalf("commit index 4 is told as %d", got)
	}

	on.fail(syscall.ENOSPC)
	if err := store(5); err != nil {
		t.Fatal(err)
	}
	<-failed
	if err := store(6); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append behind a failed one: %v", err)
	}
	s.leading = func() bool { return false }
	if err := store(6); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append of a follower behind a failed one: %v", err)
	}
	on.fail(nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.durable(5); err != nil || ctx.Err() != nil {
		t.Fatal(err)
	}
	if err := store(6); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 6; i++ {
		if err := on.GetLog(i, &e); err != nil || e.Index != i {
			t.Fatalf("entry %d on disk: %v, %v", i, e.Index, err)
		}
	}
	if !s.close(patience) {
		t.Fatal("a write is under way")
	}
}
