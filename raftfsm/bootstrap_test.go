package raftfsm

import (
	"sync"
	"testing"
)

// Founders that are given the same list make one cluster, a majority of them suffices, and a founder that
// comes later, or starts again, finds itself in it.
func TestBootstrapTogether(t *testing.T) {
	c := newCluster(t, 0, nil)
	var founders []Member
	for range 3 {
		p := c.open()
		founders = append(founders, Member{ID: p.id, PeerAddr: p.cfg.AdvertisePeer})
	}
	found := func(peers ...*peer) {
		t.Helper()
		var wg sync.WaitGroup
		for _, p := range peers {
			wg.Go(func() {
				if err := p.BootstrapTogether(c.ctx(), 42, founders); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	late := c.peers[2]
	c.stop(late)
	found(c.peers[0], c.peers[1])
	c.peers[0].put(t, "a", "1")
	for _, m := range c.peers[1].Members() {
		if started := m.ID != late.id; !m.Voter || (m.Name != "") != started {
			t.Errorf("%+v: started %v", m, started)
		}
	}
	c.start(late)
	found(late)
	c.stop(late)
	c.start(late)
	found(late)
	if err := late.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if late.get(t, "a") != "1" || late.ClusterID() != 42 {
		t.Fatalf("a late founder has a=%q in cluster %d", late.get(t, "a"), late.ClusterID())
	}
}
