package raftfsm

import (
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tripod-cluster/tripod/store"
)

func (p *peer) putLeased(t *testing.T, k string, lease int64) {
	t.Helper()
	r := putReq(k, "v")
	r.Put.Lease = lease
	res, err := p.Propose(t.Context(), r)
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
}

// Leases work on every peer; one that nobody keeps alive ends and takes its keys with it.
func TestLeaseExpires(t *testing.T) {
	c := newCluster(t, 3, nil)
	f := c.followers()
	kept, err := f[0].Grant(c.ctx(), 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	left, err := f[1].Grant(c.ctx(), 42, 2)
	if err != nil || left.ID != 42 || left.TTL != 2 {
		t.Fatal(left, err)
	}
	if _, err := c.leader().Grant(c.ctx(), 42, 2); !errors.Is(err, rpctypes.ErrGRPCLeaseExist) {
		t.Fatalf("granted twice: %v", err)
	}
	f[0].putLeased(t, "kept", kept.ID)
	f[1].putLeased(t, "left", left.ID)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if ttl, err := c.peers[i%3].KeepAlive(c.ctx(), kept.ID); err != nil || ttl != 2 {
				t.Errorf("keepalive: %d, %v", ttl, err)
				return
			}
		}
	}()
	// A key written through one peer is a moment later at the others.
	c.until("the other peer has the key", func() bool { return f[0].get(t, "left") == "v" })
	c.until("the lease that is not kept alive ends", func() bool { return f[0].get(t, "left") == "" })
	if _, err := f[1].KeepAlive(c.ctx(), 42); !errors.Is(err, rpctypes.ErrGRPCLeaseNotFound) {
		t.Errorf("keepalive of an ended lease: %v", err)
	}
	granted, rest, err := f[1].TimeToLive(c.ctx(), kept.ID)
	if err != nil || granted != 2 || rest > 2 {
		t.Errorf("time to live %d of %d, %v", rest, granted, err)
	}
	if f[0].get(t, "kept") != "v" {
		t.Error("the lease that was kept alive ended")
	}
	close(stop)
	<-done
	if _, err := f[0].Revoke(c.ctx(), kept.ID); err != nil {
		t.Fatal(err)
	}
	if f[0].get(t, "kept") != "" {
		t.Error("a revoked lease left its key")
	}
	c.sameState()
}

// A new leader gives every lease its full TTL, and then ends those that nobody renews.
func TestNewLeaderExtendsLeases(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.sameState()
	l := c.leader()
	g, err := l.Grant(c.ctx(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	// As if most of the time had passed at the old leader.
	l.leases.mu.Lock()
	l.leases.leases[g.ID].expiry = time.Now().Add(500 * time.Second)
	l.leases.mu.Unlock()
	c.stop(l)
	next := c.leader()
	_, rest, err := next.TimeToLive(c.ctx(), g.ID)
	if err != nil || rest < 900 {
		t.Fatalf("%d s are left of 1000 at the new leader, %v", rest, err)
	}
	l2 := c.followers()[0]
	if _, err := l2.leases.renew(c.ctx(), g.ID); !errors.Is(err, errNotReady) {
		t.Fatalf("a peer that does not lead renews: %v", err)
	}
}

// A former leader that thinks a lease has run out ends nothing once another peer leads.
func TestStaleLeaderRevokesNothing(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.sameState()
	old := c.leader()
	g, err := old.Grant(c.ctx(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	old.putLeased(t, "k", g.ID)
	term := old.lead.readyTerm()
	if err := old.TransferLeadership(c.ctx(), 0); err != nil {
		t.Fatal(err)
	}
	c.leader()
	old.leases.expire(g.ID, term)
	if err := old.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, ok := old.store.Lease(g.ID); !ok || old.get(t, "k") != "v" {
		t.Fatal("a deposed leader ended a living lease")
	}
	// And the same proposal of the present leader does end it.
	now := c.leader()
	now.leases.expire(g.ID, now.lead.readyTerm())
	if _, ok := now.store.Lease(g.ID); ok {
		t.Fatal("the leader could not end a lease")
	}
}

func TestLessorFollowsTheStore(t *testing.T) {
	s := store.New(store.Options{})
	n := &Node{cfg: Config{Store: s}}
	l := newLessor(n)
	s.Apply(&pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: 1 << 62}})
	s.Apply(&pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: store.MaxLeaseTTL}})
	l.lead(3)
	l.changed(store.LeaseChange{Kind: store.LeaseGranted, Lease: store.Lease{ID: 2, TTL: 10}})
	l.changed(store.LeaseChange{Kind: store.LeaseGranted, Lease: store.Lease{ID: 1, TTL: 10}}) // seen by load already
	for id, want := range map[int64]int64{1: store.MaxLeaseTTL, 2: 10} {
		granted, left, err := l.remaining(id)
		if err != nil || granted != want || left < 0 || left > want {
			t.Errorf("lease %d: %d of %d, %v", id, left, granted, err)
		}
	}
	l.changed(store.LeaseChange{Kind: store.LeaseRevoked, Lease: store.Lease{ID: 2}})
	if _, err := l.renew(t.Context(), 2); !errors.Is(err, rpctypes.ErrGRPCLeaseNotFound) {
		t.Error(err)
	}
	l.lead(0)
	if len(l.leases) != 0 || l.queue.Len() != 0 {
		t.Error("a peer that does not lead keeps timers")
	}
}

// With checkpoints a new leader knows about how much of a lease is left; a renewal gives all of it back.
func TestLeaseCheckpoints(t *testing.T) {
	c := newCluster(t, 3, func(cfg *Config) { cfg.LeaseCheckpointInterval = 20 * time.Millisecond })
	c.sameState()
	l := c.leader()
	g, err := l.Grant(c.ctx(), 7, 1000)
	if err != nil {
		t.Fatal(err)
	}
	age := func(p *peer) { // as if half of the time had passed
		p.leases.mu.Lock()
		p.leases.leases[g.ID].expiry = time.Now().Add(500 * time.Second)
		p.leases.mu.Unlock()
	}
	recorded := func() bool {
		for _, p := range c.peers {
			if lease, ok := p.store.Lease(g.ID); !ok || lease.Remaining == 0 || lease.Remaining > 500 {
				return false
			}
		}
		return true
	}
	age(l)
	c.until("every peer knows what is left", recorded)
	if err := l.TransferLeadership(c.ctx(), 0); err != nil {
		t.Fatal(err)
	}
	c.until("another leads", func() bool { return c.leader() != l })
	next := c.leader()
	_, rest, err := next.TimeToLive(c.ctx(), g.ID)
	if err != nil || rest > 500 || rest < 400 {
		t.Fatalf("%d s are left at the new leader, want about 500, %v", rest, err)
	}
	c.until("every peer knows what is left", recorded)
	if ttl, err := l.KeepAlive(c.ctx(), g.ID); err != nil || ttl != 1000 {
		t.Fatalf("keepalive: %d, %v", ttl, err)
	}
	if _, rest, err := next.TimeToLive(c.ctx(), g.ID); err != nil || rest < 900 {
		t.Fatalf("%d s are left after the renewal, %v", rest, err)
	}
	if lease, _ := next.store.Lease(g.ID); lease.Remaining != 0 && lease.Remaining < 900 {
		t.Fatalf("the renewal left the checkpoint of %d s", lease.Remaining)
	}
}
