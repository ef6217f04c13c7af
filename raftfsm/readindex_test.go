package raftfsm

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// heldConn delays what is read from a connection while the test holds it.
type heldConn struct {
	net.Conn
	gate *gate
}

type gate struct {
	mu   sync.Mutex
	shut chan struct{}
	held atomic.Int64
}

func (g *gate) close() (open func()) {
	ch := make(chan struct{})
	g.mu.Lock()
	g.shut = ch
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		g.shut = nil
		g.mu.Unlock()
		close(ch)
	})
}

// Read holds an answer back that arrived while the gate is shut: it is "in flight".
func (c *heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate.mu.Lock()
	ch := c.gate.shut
	c.gate.mu.Unlock()
	if ch != nil && n > 0 {
		c.gate.held.Add(1)
		<-ch
	}
	return n, err
}

// The hole of raft.VerifyLeader, played against our read index: the leader's main loop hangs in the log,
// answers to its heartbeats are in flight, the others elect and acknowledge a write. A read that starts now
// at the deposed leader must not pass, neither before nor after the old answers arrive and the disk is back.
func TestDeposedLeaderServesNoRead(t *testing.T) {
	gates := map[string]*gate{}
	var mu sync.Mutex
	c := newCluster(t, 3, func(c *Config) {
		c.DiskStall, c.DiskDeadline = time.Hour, time.Hour // the watch would mend it by other means
		g := &gate{}
		mu.Lock()
		gates[c.Name] = g
		mu.Unlock()
		inner := c.faults.conn
		c.faults.conn = func(nc net.Conn, peer PeerID) net.Conn { return &heldConn{inner(nc, peer), g} }
		withStallLog(c)
	})
	old := c.leader()
	old.put(t, "x", "0")
	c.sameState()
	release := old.log0(t).stall()
	defer release()
	open := gates[old.cfg.Name].close()
	defer open()
	// The main loop hangs once there is something to write that is not written aside (ahead.go).
	go old.raft.Barrier(0)
	c.until("answers to the leader are in flight", func() bool { return gates[old.cfg.Name].held.Load() >= 2 })
	c.net.isolate(old.id, true, c.peers)

	var next *peer
	c.until("the others elect", func() bool {
		for _, p := range c.peers {
			if p != old && p.IsLeader() {
				next = p
				return true
			}
		}
		return false
	})
	next.put(t, "x", "1") // acknowledged
	if old.raft.State() != raft.Leader {
		t.Fatal("the scene is wrong: the old leader noticed before its main loop went on")
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	passed := make(chan error, 8)
	for range cap(passed) {
		go func() { passed <- old.ReadIndex(ctx) }()
	}
	open()
	release()
	for range cap(passed) {
		if err := <-passed; err == nil && old.get(t, "x") != "1" {
			t.Fatal("a deposed leader served a linearizable read of old state")
		}
	}
	if _, err := old.confirm(); err == nil {
		t.Fatal("a deposed leader confirmed itself")
	}
	c.net.isolate(old.id, false, c.peers)
	if err := old.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if got := old.get(t, "x"); got != "1" {
		t.Fatalf("after healing a linearizable read gives x = %q", got)
	}
}

// log0 is the log that the rig's faults put under the peer.
func (p *peer) log0(t testing.TB) *stallLog {
	t.Helper()
	s, ok := p.Node.logs.LogStore.(*stallLog)
	if !ok {
		t.Fatal("this cluster has no stallLog")
	}
	return s
}

func withStallLog(c *Config) {
	c.faults.logs = func(l raft.LogStore) raft.LogStore { return &stallLog{LogStore: l} }
}

// A leader that has not yet applied an entry of its own term does not know what was committed before.
func TestReadWaitsForTheLeadersOwnEntry(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	l.lead.mu.Lock()
	ready := l.lead.ready
	l.lead.ready = 0
	l.lead.mu.Unlock()
	if _, err := l.confirm(); !errors.Is(err, errNotReady) {
		t.Fatalf("a leader without an entry of its term confirmed: %v", err)
	}
	l.lead.applied(ready)
	if err := c.followers()[0].ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
}
