package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestOnePeer(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	p.put(t, "a", "1")
	if err := p.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if got := p.get(t, "a"); got != "1" {
		t.Fatalf("a = %q", got)
	}
	if err := p.Bootstrap(c.ctx()); !errors.Is(err, ErrBootstrapped) {
		t.Fatalf("second bootstrap: %v", err)
	}
	cluster := p.ClusterID()
	c.stop(p)
	c.start(p)
	if err := p.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if got := p.get(t, "a"); got != "1" || p.ClusterID() != cluster || cluster == 0 {
		t.Fatalf("after a restart a = %q, cluster %x, was %x", got, p.ClusterID(), cluster)
	}
}

// Whoever wrote reads its own write locally, on whichever peer, and a read index on any other peer
// makes it seen there.
func TestEveryPeerWritesAndReads(t *testing.T) {
	c := newCluster(t, 3, nil)
	for i, p := range c.peers {
		k := fmt.Sprint("k", i)
		p.put(t, k, "v")
		if p.get(t, k) != "v" {
			t.Fatalf("peer %d does not read its own write", i)
		}
		for j, q := range c.peers {
			if err := q.ReadIndex(c.ctx()); err != nil {
				t.Fatal(err)
			}
			if q.get(t, k) != "v" {
				t.Fatalf("a linearizable read on peer %d misses the write of peer %d", j, i)
			}
		}
	}
	c.sameState()
}

func TestResultIsThatOfTheRequest(t *testing.T) {
	c := newCluster(t, 3, nil)
	for _, p := range c.peers {
		res, err := p.Propose(c.ctx(), &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 1 << 40}})
		if err != nil || !errors.Is(res.Err, rpctypes.ErrGRPCFutureRev) {
			t.Fatalf("compaction of the future: %v, %v", res.Err, err)
		}
		res, err = p.Propose(c.ctx(), putReq("x", p.cfg.Name))
		if err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
		if put, ok := res.Response.(*pb.PutResponse); !ok || put.Header.Revision != res.Revision || res.Revision < 2 {
			t.Fatalf("put gave %v at revision %d", res.Response, res.Revision)
		}
	}
	big := putReq("big", string(make([]byte, MaxRequestBytes+1)))
	if _, err := c.leader().Propose(c.ctx(), big); !errors.Is(err, rpctypes.ErrGRPCRequestTooLarge) {
		t.Fatalf("a request of %d bytes: %v", MaxRequestBytes, err)
	}
}

// Many proposers on all peers: each write is applied once, and larger ones than an entry holds go through.
func TestConcurrentProposers(t *testing.T) {
	c := newCluster(t, 3, nil)
	var wg sync.WaitGroup
	const each = 40
	for _, p := range c.peers {
		for w := range 16 {
			wg.Go(func() {
				for i := range each {
					size := 100
					if i == 20 && w == 0 {
						size = 3 << 19 // 1.5 MiB
					}
					p.put(t, fmt.Sprintf("%s/%d/%d", p.cfg.Name, w, i), string(make([]byte, size)))
				}
			})
		}
	}
	wg.Wait()
	l := c.leader()
	if err := l.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if rev := l.store.Revision(); rev != 1+3*16*each {
		t.Fatalf("revision %d after %d puts", rev, 3*16*each)
	}
	c.sameState()
}

func TestRestartOfAllPeersAtOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	for i := range 50 {
		c.peers[i%3].put(t, fmt.Sprint("k", i), fmt.Sprint(i))
	}
	c.sameState()
	want := string(dump(t, c.peers[0].store))
	for _, p := range c.peers {
		c.stop(p)
	}
	for _, p := range c.peers {
		c.start(p)
	}
	for _, p := range c.peers {
		if err := p.ReadIndex(c.ctx()); err != nil {
			t.Fatal(err)
		}
		if string(dump(t, p.store)) != want {
			t.Fatalf("%s lost or changed state over the restart", p.cfg.Name)
		}
	}
}

// Closing the leader hands over: the others go on without waiting for a heartbeat timeout.
func TestCloseHandsOver(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.sameState()
	l := c.leader()
	term := l.raft.CurrentTerm()
	c.stop(l)
	next := c.leader()
	if next == l {
		t.Fatal("the stopped peer leads")
	}
	if got := next.raft.CurrentTerm(); got != term+1 {
		t.Errorf("the new leader is of term %d, want %d: it was an election, not a transfer", got, term+1)
	}
	next.put(t, "after", "1")
}

func TestLeadershipIsTold(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	f := c.followers()[0]
	lead, follow := l.Leadership(), f.Leadership()
	if s := <-lead; !s.IsLeader || s.Term == 0 {
		t.Fatalf("the leader is told %+v", s)
	}
	if s := <-follow; s.IsLeader {
		t.Fatalf("a follower is told %+v", s)
	}
	if err := f.TransferLeadership(c.ctx(), f.id); err != nil {
		t.Fatal(err)
	}
	if s := <-lead; s.IsLeader {
		t.Fatalf("the old leader is told %+v", s)
	}
	if s := <-follow; !s.IsLeader {
		t.Fatalf("the new leader is told %+v", s)
	}
	c.stop(f)
	s, open := <-follow
	if s.IsLeader {
		t.Fatalf("a closed peer is told %+v", s)
	}
	if open {
		if _, open = <-follow; open {
			t.Fatal("the channel of a closed peer stays open")
		}
	}
}

func TestNoLeader(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) { c.RequestTimeout = 300_000_000 })
	l := c.leader()
	f := c.followers()
	c.stop(f[0])
	c.stop(f[1])
	c.until("the leader gives up", func() bool { id, _ := l.Leader(); return id == 0 })
	if _, err := l.Propose(c.ctx(), putReq("a", "1")); !errors.Is(err, rpctypes.ErrGRPCNoLeader) {
		t.Fatalf("propose without a leader: %v", err)
	}
	if err := l.ReadIndex(c.ctx()); !errors.Is(err, rpctypes.ErrGRPCNoLeader) {
		t.Fatalf("read without a leader: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Propose(ctx, putReq("a", "1")); !errors.Is(err, context.Canceled) {
		t.Fatalf("propose with a cancelled context: %v", err)
	}
	for _, p := range f {
		c.start(p)
	}
	c.until("writes go on", func() bool { _, err := l.Propose(c.ctx(), putReq("b", "1")); return err == nil })
	if got := l.get(t, "a"); got != "" {
		t.Fatalf("a proposal that was refused was applied: %q", got)
	}
}

// A follower's lone write is answered although nothing follows that would carry the commit index, and raft's own
// timer does not fire.
func TestFollowerHearsOfTheCommitAtOnce(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) { c.faults.commitTimeout = time.Hour })
	for i := range 5 {
		for _, p := range c.peers {
			k := fmt.Sprint("k", i)
			p.put(t, k, p.cfg.Name)
			if got := p.get(t, k); got != p.cfg.Name {
				t.Fatalf("%s = %q", k, got)
			}
		}
	}
	c.sameState()
}
