package raftfsm

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// Only a heartbeat that changes neither term nor role goes past raft's main loop.
func TestOnlySameTermHeartbeatsTakeTheFastPath(t *testing.T) {
	c := newCluster(t, 3, nil)
	f := c.followers()[0]
	term, state := f.raft.CurrentTerm(), f.raft.State()
	if state != raft.Follower {
		t.Fatal(state)
	}
	tr := &transport{NetworkTransport: f.trans.NetworkTransport, in: make(chan raft.RPC, 1), stop: make(chan struct{})}
	var handler func(raft.RPC)
	var fast atomic.Int64
	tr.role = func() (uint64, raft.RaftState) { return term, state }
	handler = tr.heartbeats(func(raft.RPC) { fast.Add(1) })
	for _, s := range []struct {
		name  string
		term  uint64
		state raft.RaftState
		fast  bool
	}{
		{"same term, follower", term, raft.Follower, true},
		{"newer term", term + 1, raft.Follower, false},
		{"older term", term - 1, raft.Follower, false},
		{"candidate", term, raft.Candidate, false},
		{"leader", term, raft.Leader, false},
	} {
		state = s.state
		fast.Store(0)
		handler(raft.RPC{Command: &raft.AppendEntriesRequest{Term: s.term}})
		slow := false
		select {
		case <-tr.in:
			slow = true
		default:
		}
		if (fast.Load() == 1) != s.fast || slow == s.fast {
			t.Errorf("%s: fast path %v, main loop %v", s.name, fast.Load() == 1, slow)
		}
	}
}

func TestAppendEntriesIsCappedInBytes(t *testing.T) {
	a := &raft.AppendEntriesRequest{}
	for i := range 64 {
		a.Entries = append(a.Entries, &raft.Log{Index: uint64(i + 1), Data: make([]byte, 1<<20)})
	}
	trim(a)
	if n := len(a.Entries); n != appendBytes>>20 {
		t.Errorf("%d entries of 1 MiB in one request", n)
	}
	a.Entries = []*raft.Log{{Data: make([]byte, 2*appendBytes)}, {Data: make([]byte, 1)}}
	trim(a)
	if n := len(a.Entries); n != 1 {
		t.Errorf("an oversized entry goes with %d others", n-1)
	}
}

// A follower that is behind by more than fits one request gets everything, in capped requests.
func TestCatchUpAcrossCappedRequests(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) { c.SnapshotEntries, c.SnapshotBytes = 1<<30, 1<<40 })
	f := c.followers()[0]
	c.stop(f)
	l := c.leader()
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() { l.put(t, string(rune('a'+i)), string(make([]byte, appendBytes/4))) })
	}
	wg.Wait()
	c.start(f)
	if err := f.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	c.sameState()
}

// A leader whose log hangs while its network works: the others elect within moments, and the process is told to
// end when the disk does not come back.
func TestHungLogLosesLeadership(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) {
		withStallLog(c)
		c.DiskSlow, c.DiskStall, c.DiskDeadline = 100*time.Millisecond, 300*time.Millisecond, 2*time.Second
	})
	l := c.leader()
	l.put(t, "a", "1")
	release := l.log0(t).stall()
	defer release()
	go l.Propose(c.ctx(), putReq("stuck", "1"))
	var next *peer
	c.until("another peer leads", func() bool {
		for _, p := range c.peers {
			if p != l && p.IsLeader() {
				next = p
				return true
			}
		}
		return false
	})
	next.put(t, "a", "2")
	select {
	case err := <-l.fatal:
		t.Log(err)
	case <-time.After(patience):
		t.Fatal("nobody was told that the disk hangs")
	}
	release()
	if err := l.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if got := l.get(t, "a"); got != "2" {
		t.Fatalf("a = %q", got)
	}
}

// An input/output error in the log is the end of the peer: after a failed fsync nothing on that disk can be trusted.
func TestBrokenDiskEndsThePeer(t *testing.T) {
	c := newCluster(t, 3, withStallLog)
	l := c.leader()
	l.log0(t).fail(errIO)
	go l.Propose(c.ctx(), putReq("x", "1"))
	select {
	case err := <-l.fatal:
		if !errors.Is(err, errIO) {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("nobody was told")
	}
}
