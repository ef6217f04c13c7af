package raftfsm

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"
)

// created starts the peer that Create made a member for.
func (c *cluster) created(at *peer, wantsVote bool) *peer {
	c.t.Helper()
	p := c.open()
	c.stop(p)
	m, err := at.Create(c.ctx(), Member{PeerAddr: p.cfg.AdvertisePeer, PeerURLs: []string{"http://" + p.cfg.AdvertisePeer}, WantsVote: wantsVote}, Rules{})
	if err != nil {
		c.t.Fatal(err)
	}
	// The peer that was opened to get an address has an ID of its own: the member is another one.
	p.id = m.ID
	p.cfg.ID, p.cfg.Dir, p.cfg.TLS = m.ID, c.t.TempDir(), c.ca.issue(c.t, m.ID)
	return p
}

func (c *cluster) member(at *peer, id PeerID) (m Member) {
	for _, o := range at.Members() {
		if o.ID == id {
			m = o
		}
	}
	return m
}

// A member that is added before it starts does not count against the majority, and votes by itself once it
// has started and caught up.
func TestCreatedMemberVotesWhenItHasCaughtUp(t *testing.T) {
	c := newCluster(t, 1, nil)
	first := c.peers[0]
	p := c.created(first, true)
	first.put(t, "k", "v") // one of two is no majority, if the new one counted
	if m := c.member(first, p.id); m.Voter || !m.WantsVote || m.Name != "" {
		t.Errorf("before it starts it is %+v", m)
	}
	c.start(p)
	c.until("it votes, under its name", func() bool {
		m := c.member(first, p.id)
		return m.Voter && m.Name == p.cfg.Name
	})
}

// A learner stays one until it is promoted, which is refused while it is away, and once it votes.
func TestLearnersAndTheirRules(t *testing.T) {
	c := newCluster(t, 1, nil)
	first := c.peers[0]
	rules := Rules{MaxLearners: 1}
	p := c.created(first, false)
	if _, err := first.Create(c.ctx(), Member{PeerAddr: "127.0.0.1:1"}, rules); !errors.Is(err, ErrTooManyLearners) {
		t.Errorf("a second learner: %v", err)
	}
	if _, err := first.Create(c.ctx(), Member{PeerAddr: p.cfg.AdvertisePeer, WantsVote: true}, rules); !errors.Is(err, ErrAddressTaken) {
		t.Errorf("a second member of one address: %v", err)
	}
	if err := first.PromoteBy(c.ctx(), p.id, rules); !errors.Is(err, ErrLagging) {
		t.Errorf("promoted before it started: %v", err)
	}
	if err := first.PromoteBy(c.ctx(), 12345, rules); !errors.Is(err, ErrNotMember) {
		t.Errorf("a stranger promoted: %v", err)
	}
	c.start(p)
	c.until("the learner has the cluster's state", func() bool { return p.ReadIndex(c.ctx()) == nil && p.Learner() })
	c.until("it is promoted", func() bool {
		err := p.PromoteBy(c.ctx(), p.id, rules) // by way of the leader
		if err != nil && !errors.Is(err, ErrLagging) {
			t.Fatal(err)
		}
		return err == nil
	})
	if err := first.PromoteBy(c.ctx(), p.id, rules); !errors.Is(err, ErrNotLearner) {
		t.Errorf("promoted twice: %v", err)
	}
	c.until("it knows that it votes", func() bool { return !p.Learner() })
}

// Strict rules look at who has started and who was in contact for some time.
func TestStrictRules(t *testing.T) {
	strict := Rules{Strict: true}
	c := newCluster(t, 1, nil)
	first := c.peers[0]
	if err := first.RemoveBy(c.ctx(), first.id, strict); !errors.Is(err, ErrNotStarted) {
		t.Errorf("the only member removed: %v", err)
	}
	if err := first.RemoveBy(c.ctx(), 12345, strict); !errors.Is(err, ErrNotMember) {
		t.Errorf("a stranger removed: %v", err)
	}
	m, err := first.Create(c.ctx(), Member{PeerAddr: "127.0.0.1:1", WantsVote: true}, strict)
	if err != nil {
		t.Fatalf("the second member: %v", err)
	}
	if _, err := first.Create(c.ctx(), Member{PeerAddr: "127.0.0.1:2", WantsVote: true}, strict); !errors.Is(err, ErrNotStarted) {
		t.Errorf("a third one while the second has not started: %v", err)
	}
	if err := first.RemoveBy(c.ctx(), m.ID, strict); err != nil {
		t.Errorf("removing a member that never started: %v", err)
	}
	second := c.created(first, true)
	c.start(second)
	c.until("the second votes", func() bool { return c.member(first, second.id).Voter && c.member(first, second.id).Name != "" })
	if _, err := first.Create(c.ctx(), Member{PeerAddr: "127.0.0.1:3"}, strict); !errors.Is(err, ErrUnhealthy) {
		t.Errorf("a learner added right after the second came: %v", err)
	}
}

// A new leader of a cluster that has been there for some time counts who answered it from the beginning.
func TestContactEnough(t *testing.T) {
	const s = time.Second
	for _, c := range []struct{ known, led, want time.Duration }{
		{known: 0, led: 0, want: healthyFor},
		{known: 4 * s, led: s, want: healthyFor},
		{known: time.Hour, led: 0, want: 0},
		{known: time.Hour, led: contactGap + s, want: s},
		{known: time.Hour, led: time.Hour, want: healthyFor},
	} {
		if got := contactEnough(c.known, c.led); got != c.want {
			t.Errorf("known for %v, led for %v: %v, want %v", c.known, c.led, got, c.want)
		}
	}
}

// A change of leaders does not make a cluster unhealthy.
func TestStrictRulesAfterAChangeOfLeaders(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.allVote(3)
	strict := Rules{Strict: true}
	c.until("all have known a leader for long enough", func() bool {
		for _, p := range c.peers {
			if known, _ := p.lead.since(); known < healthyFor {
				return false
			}
		}
		return true
	})
	next := c.followers()[0]
	if err := next.TransferLeadership(c.ctx(), next.id); err != nil {
		t.Fatal(err)
	}
	c.until("it leads and hears the others", func() bool {
		return next.IsLeader() && next.healthy(next.Members()) == 3
	})
	_, led := next.lead.since()
	if _, err := next.Create(c.ctx(), Member{PeerAddr: "127.0.0.1:1"}, strict); err != nil {
		t.Errorf("a learner added %v after the change: %v", led, err)
	}
	if led >= healthyFor {
		t.Errorf("healthy only after %v", led)
	}
}

// An address that was changed by an operator holds until the peer's own configuration changes.
func TestReaddress(t *testing.T) {
	c := newCluster(t, 2, nil)
	first, second := c.peers[0], c.peers[1]
	_, port, err := net.SplitHostPort(second.cfg.AdvertisePeer)
	if err != nil {
		t.Fatal(err)
	}
	to := Member{ID: second.id, PeerAddr: "localhost:" + port, PeerURLs: []string{"http://localhost:" + port}}
	if err := first.Readdress(c.ctx(), to); err != nil {
		t.Fatal(err)
	}
	first.put(t, "k", "v")
	c.stop(second)
	c.start(second)
	first.put(t, "k", "w") // needs the second: it was found at the new address
	if m := c.member(first, second.id); m.PeerAddr != to.PeerAddr || len(m.PeerURLs) != 1 {
		t.Errorf("after a restart the member is at %s", m.PeerAddr)
	}
	if err := first.Readdress(c.ctx(), Member{ID: second.id, PeerAddr: first.cfg.AdvertisePeer}); !errors.Is(err, ErrAddressTaken) {
		t.Errorf("two members at one address: %v", err)
	}
	if err := first.Readdress(c.ctx(), Member{ID: 12345, PeerAddr: "127.0.0.1:1"}); !errors.Is(err, ErrNotMember) {
		t.Errorf("a stranger's address changed: %v", err)
	}
}

// Who holds a certificate of the peers' authority may ask who the members are, without being one.
func TestRoster(t *testing.T) {
	c := newCluster(t, 1, nil)
	_, client, err := c.ca.issue(t, 999)()
	if err != nil {
		t.Fatal(err)
	}
	cluster, members, err := Roster(c.ctx(), c.peers[0].cfg.AdvertisePeer, client)
	if err != nil || cluster != c.peers[0].ClusterID() || len(members) != 1 || members[0].ID != c.peers[0].id {
		t.Errorf("cluster %x, members %+v, %v", cluster, members, err)
	}
	stranger := newTestCA(t)
	_, foreign, err := stranger.issue(t, 999)()
	if err != nil {
		t.Fatal(err)
	}
	for what, conf := range map[string]*tls.Config{
		"another authority's client": {Certificates: foreign.Certificates, RootCAs: client.RootCAs},
		"a server that is not ours":  {Certificates: client.Certificates, RootCAs: foreign.RootCAs},
	} {
		if _, _, err := Roster(c.ctx(), c.peers[0].cfg.AdvertisePeer, conf); err == nil {
			t.Errorf("%s was answered", what)
		}
	}
}
