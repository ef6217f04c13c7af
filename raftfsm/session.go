package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// maxWindow bounds how many sequence numbers of one proposer can be open; the proposer
// keeps well below.
const maxWindow = 1 << 20

// session remembers what was applied of one peer's latest run. All up to floor are
// done with: applied, or given up by the proposer. Above it, done holds those applied
// out of order; as records are mostly in order it is nearly always empty.
type session struct {
	boot  uint64
	floor uint64
	done  map[uint64]struct{}
}

type sessions map[PeerID]*session

// admit decides whether a record is applied, and notes it. It is false for one that was
// applied before, that its proposer gave up, or that comes from an earlier run.
func (ss sessions) admit(r *record) bool {
	s := ss[r.peer]
	if s == nil || r.boot > s.boot {
		s = &session{boot: r.boot, done: map[uint64]struct{}{}}
		ss[r.peer] = s
	}
	if r.boot < s.boot {
		return false
	}
	if r.floor > s.floor {
		s.raise(r.floor)
	}
	if r.seq <= s.floor || r.seq > s.floor+maxWindow {
		return false
	}
	if _, ok := s.done[r.seq]; ok {
		return false
	}
	if r.seq != s.floor+1 {
		s.done[r.seq] = struct{}{}
		return true
	}
	s.floor++
	s.absorb()
	return true
}

func (s *session) raise(floor uint64) {
	if len(s.done) > 0 {
		for q := range s.done { // order does not matter: a set shrinks
			if q <= floor {
				delete(s.done, q)
			}
		}
	}
	s.floor = floor
	s.absorb()
}

func (s *session) absorb() {
	for len(s.done) > 0 {
		if _, ok := s.done[s.floor+1]; !ok {
			return
		}
		s.floor++
		delete(s.done, s.floor)
	}
}

// has tells whether seq was applied or given up.
func (s *session) has(seq uint64) bool {
	if seq <= s.floor {
		return true
	}
	_, ok := s.done[seq]
	return ok
}

// encode appends the sessions in order of peer.
func (ss sessions) encode(b []byte) []byte {
	peers := make([]PeerID, 0, len(ss))
	for p := range ss {
		peers = append(peers, p)
	}
	slices.Sort(peers)
	b = binary.AppendUvarint(b, uint64(len(peers)))
	for _, p := range peers {
		s := ss[p]
		done := make([]uint64, 0, len(s.done))
		for q := range s.done {
			done = append(done, q)
		}
		slices.Sort(done)
		b = binary.AppendUvarint(b, uint64(p))
		b = binary.AppendUvarint(b, s.boot)
		b = binary.AppendUvarint(b, s.floor)
		b = binary.AppendUvarint(b, uint64(len(done)))
		last := s.floor
		for _, q := range done {
			b = binary.AppendUvarint(b, q-last)
			last = q
		}
	}
	return b
}

var errSessions = errors.New("malformed sessions")

func decodeSessions(b []byte) (sessions, error) {
	short := false
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			short = true
			return 0
		}
		b = b[n:]
		return v
	}
	n := next()
	if n > 1<<16 {
		return nil, fmt.Errorf("%w: %d peers", errSessions, n)
	}
	ss := sessions{}
	for range n {
		p := PeerID(next())
		s := &session{boot: next(), floor: next(), done: map[uint64]struct{}{}}
		k := next()
		if k > maxWindow {
			return nil, fmt.Errorf("%w: window of %d", errSessions, k)
		}
		last := s.floor
		for range k {
			d := next()
			if d == 0 {
				return nil, errSessions
			}
			last += d
			s.done[last] = struct{}{}
		}
		if p == 0 || short {
			return nil, errSessions
		}
		ss[p] = s
	}
	if short || len(b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes left", errSessions, len(b))
	}
	return ss, nil
}
