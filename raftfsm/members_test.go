package raftfsm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func memberOf(p *peer) Member {
	return Member{ID: p.id, Name: p.cfg.Name, PeerAddr: p.cfg.AdvertisePeer, Version: "test"}
}

// A peer learns first and votes only once it has caught up; changes may be asked for on any member.
func TestJoin(t *testing.T) {
	c := newCluster(t, 2, func(c *Config) { c.ClientURLs = []string{"https://" + c.AdvertisePeer} })
	for i := range 20 {
		c.peers[0].put(t, fmt.Sprint("k", i), "v")
	}
	f := c.followers()[0]
	p := c.open()
	if err := f.AddNonvoter(c.ctx(), memberOf(p)); err != nil {
		t.Fatal(err)
	}
	if err := p.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if p.get(t, "k19") != "v" {
		t.Fatal("a linearizable read on a learner misses a write")
	}
	p.put(t, "from", "learner")
	for _, m := range p.Members() {
		if m.ID == p.id && m.Voter {
			t.Fatal("the peer votes before it was promoted")
		}
	}
	c.until("promoted", func() bool {
		err := f.Promote(c.ctx(), p.id)
		if err != nil && !errors.Is(err, ErrLagging) {
			t.Fatal(err)
		}
		return err == nil
	})
	c.until("every peer knows every member in full", func() bool {
		for _, q := range c.peers {
			ms := q.Members()
			for _, m := range ms {
				if !m.Voter || m.Name == "" || len(m.ClientURLs) != 1 || m.ClientURLs[0] != "https://"+m.PeerAddr {
					return false
				}
			}
			if len(ms) != 3 || q.ClusterID() != c.peers[0].ClusterID() {
				return false
			}
		}
		return true
	})
	st := c.leader().Status(c.ctx())
	if !st.IsLeader || len(st.Peers) != 3 {
		t.Fatalf("%+v", st)
	}
	for _, q := range st.Peers {
		if !q.Reachable || q.Applied == 0 || q.Version != "test" || (q.Member.ID != st.ID && q.LastContact.IsZero()) {
			t.Errorf("%+v", q)
		}
	}
}

// A peer that is away or far behind is not made a voter: it would only count against the majority.
func TestPromoteRefusesWhoLags(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.PromoteLag = 5 })
	l := c.peers[0]
	p := c.open()
	if err := l.AddNonvoter(c.ctx(), memberOf(p)); err != nil {
		t.Fatal(err)
	}
	c.stop(p)
	for i := range 20 {
		l.put(t, fmt.Sprint("k", i), "v")
	}
	if err := l.Promote(c.ctx(), p.id); !errors.Is(err, ErrLagging) {
		t.Fatalf("promotion of a peer that is down: %v", err)
	}
	c.start(p)
	c.until("it catches up", func() bool { return l.Promote(c.ctx(), p.id) == nil })
	if err := l.Promote(c.ctx(), p.id); err != nil {
		t.Fatalf("promotion again: %v", err)
	}
	if err := l.Promote(c.ctx(), 12345); !errors.Is(err, ErrNotMember) {
		t.Fatalf("promotion of a stranger: %v", err)
	}
}

func TestNamesAndAddressesAreUnique(t *testing.T) {
	c := newCluster(t, 2, nil)
	f := c.followers()[0]
	for _, m := range []Member{
		{ID: 99, Name: "p0", PeerAddr: "127.0.0.1:1"},
		{ID: 99, Name: "p0"},
		{ID: 99, Name: "other", PeerAddr: c.peers[0].cfg.AdvertisePeer},
	} {
		if err := f.AddNonvoter(c.ctx(), m); err == nil {
			t.Errorf("%+v was added", m)
		}
	}
	if err := f.AddNonvoter(c.ctx(), Member{ID: 99, Name: "p0", PeerAddr: "127.0.0.1:1"}); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a taken name: %v", err)
	}
	if n := len(c.leader().Members()); n != 2 {
		t.Errorf("%d members after refused additions", n)
	}
}

// A removed peer learns of it from the leader, before it misses heartbeats.
func TestRemovedIsTold(t *testing.T) {
	const heartbeat = 2 * time.Second
	c := newCluster(t, 3, func(cfg *Config) { cfg.HeartbeatTimeout = heartbeat })
	gone := c.followers()[0]
	if err := c.leader().Remove(c.ctx(), gone.id); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-gone.fatal:
		if missed := gone.sinceContact(); !errors.Is(err, ErrRemoved) || missed > 4*heartbeat {
			t.Fatalf("%v, %v after the last heartbeat", err, missed)
		}
	case <-time.After(patience):
		t.Fatal("the removed peer was not told")
	}
}

// A removed peer is told so, and its ID never comes back.
func TestRemove(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.sameState()
	f := c.followers()
	gone := f[0]
	if err := f[1].Remove(c.ctx(), gone.id); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-gone.fatal:
		if !errors.Is(err, ErrRemoved) {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the removed peer was not told")
	}
	if err := f[1].AddNonvoter(c.ctx(), memberOf(gone)); !errors.Is(err, ErrRemoved) {
		t.Fatalf("adding a removed peer: %v", err)
	}
	if err := f[1].Remove(c.ctx(), gone.id); err != nil {
		t.Fatalf("removing again: %v", err)
	}
	if err := f[1].Remove(c.ctx(), 4711); !errors.Is(err, ErrNotMember) {
		t.Fatalf("removing a stranger: %v", err)
	}
	c.stop(gone)
	// Its name is free for another peer.
	p := c.open()
	m := memberOf(p)
	m.Name = gone.cfg.Name
	if err := f[1].AddNonvoter(c.ctx(), m); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveOfTheLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.sameState()
	l := c.leader()
	if err := l.Remove(c.ctx(), l.id); err != nil {
		t.Fatal(err)
	}
	c.stop(l)
	next := c.leader()
	next.put(t, "a", "1")
	if n := len(next.Members()); n != 2 {
		t.Fatalf("%d members", n)
	}
}

// Removing a live voter while another is down would leave no majority.
func TestRemoveKeepsAMajority(t *testing.T) {
	c := newCluster(t, 3, nil)
	f := c.followers()
	c.stop(f[0])
	if err := c.leader().Remove(c.ctx(), f[1].id); !errors.Is(err, ErrQuorum) {
		t.Fatalf("removal of the last live follower: %v", err)
	}
	if err := c.leader().Remove(c.ctx(), f[0].id); err != nil {
		t.Fatalf("removal of the dead one: %v", err)
	}
	c.leader().put(t, "a", "1")
}

func TestTransferNamesWhatIsInTheWay(t *testing.T) {
	c := newCluster(t, 2, nil)
	f := c.followers()[0]
	c.stop(f)
	err := c.leaderOrLast().transferHere(c.ctx(), 0)
	if err == nil || !strings.Contains(err.Error(), "no voter") {
		t.Fatalf("transfer to nobody: %v", err)
	}
}

func (c *cluster) leaderOrLast() *peer {
	for _, p := range c.peers {
		if p.up {
			return p
		}
	}
	return nil
}

// A peer whose certificate is of another authority, or for another ID, gets no connection.
func TestStrangersAreRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	l := c.peers[0]
	stranger := PeerID(4242)
	for name, tc := range map[string]struct {
		ca   *testCA
		cert PeerID
		to   PeerID
	}{
		"other authority":   {newTestCA(t), stranger, l.id},
		"certificate of id": {c.ca, 777, l.id},
		"meant for another": {c.ca, stranger, 31337},
		"no member":         {c.ca, stranger, l.id},
	} {
		s := &streams{self: stranger, tls: tc.ca.issue(t, tc.cert), log: quiet(t), cluster: func() uint64 { return 0 }, removed: func() {}}
		s.prepare()
		_, client, err := s.tls()
		if err != nil {
			t.Fatal(err)
		}
		client.ServerName = l.id.String()
		conn, err := s.dial(c.ctx(), tc.to, l.cfg.AdvertisePeer, protoRPC)
		if err == nil {
			conn.Close()
			t.Errorf("%s: connected", name)
		}
		s.cancel()
	}
}

// A peer that moved tells the cluster its new address by itself.
func TestMovedPeer(t *testing.T) {
	c := newCluster(t, 3, nil)
	f := c.followers()[0]
	c.stop(f)
	addr := freeAddr(t)
	f.cfg.ListenPeer, f.cfg.AdvertisePeer = addr, addr
	c.start(f)
	c.until("the cluster knows the new address", func() bool {
		for _, p := range c.peers {
			if s, ok := p.server(f.id); !ok || string(s.Address) != addr || s.Suffrage != raft.Voter {
				return false
			}
		}
		return true
	})
	c.leader().put(t, "a", "1")
	if err := f.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
}
