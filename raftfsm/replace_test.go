package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/store"
)

// beginFrom makes a stopped peer begin a new cluster with the state of s.
func (c *cluster) beginFrom(p *peer, s *store.Store, o *Offline) uint64 {
	c.t.Helper()
	sn := s.Snapshot()
	defer sn.Close()
	n := NewCluster{
		Self:  Member{ID: p.id, Name: p.cfg.Name, PeerAddr: p.cfg.AdvertisePeer},
		State: sn,
	}
	if o != nil {
		n.Replaced, n.Removed = append([]uint64{o.Cluster}, o.Replaced...), o.Removed
		for _, m := range o.Members {
			if m.ID != p.id {
				n.Expected = append(n.Expected, m)
			}
		}
	}
	id, err := BeginCluster(p.cfg.Dir, n, quiet(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// offline reads what a stopped peer holds.
func (c *cluster) offline(p *peer) *Offline {
	c.t.Helper()
	o, err := ReadOffline(p.cfg.Dir, quiet(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

// restartReplaced waits until a peer ends since its cluster was replaced, and starts it
// again, as systemd does.
func (c *cluster) restartReplaced(p *peer) {
	c.t.Helper()
	select {
	case err := <-p.fatal:
		if !errors.Is(err, ErrReplaced) {
			c.t.Fatalf("%s ended: %v", p.cfg.Name, err)
		}
	case <-c.ctx().Done():
		c.t.Fatalf("%s did not learn that its cluster was replaced", p.cfg.Name)
	}
	c.stop(p)
	c.start(p)
}

// allVote waits until every peer that is up votes and holds the same.
func (c *cluster) allVote(n int) {
	c.t.Helper()
	c.until("all vote", func() bool {
		voters := 0
		for _, m := range c.leader().Members() {
			if m.Voter {
				voters++
			}
		}
		return voters == n
	})
	c.sameState()
}

func TestOfflineIsWhatThePeerHeld(t *testing.T) {
	c := newCluster(t, 3, nil)
	gone := c.open()
	c.join(gone)
	if err := c.peers[0].Remove(c.ctx(), gone.id); err != nil {
		t.Fatal(err)
	}
	c.stop(gone)
	for i := range 50 {
		c.peers[0].put(t, fmt.Sprint("k", i), "v")
	}
	c.until("the state is in all", func() bool { return c.peers[1].get(t, "k49") == "v" && c.peers[2].get(t, "k49") == "v" })
	p := c.peers[1]
	if err := p.snapshotNow(1, 1); err != nil {
		t.Fatal(err)
	}
	c.peers[0].put(t, "after the snapshot", "v")
	c.until("it is in all", func() bool { return p.get(t, "after the snapshot") == "v" })
	want, last, cluster := dump(t, p.store), p.raft.LastIndex(), p.ClusterID()
	c.stop(p)
	o := c.offline(p)
	if string(dump(t, o.Store)) != string(want) {
		t.Error("the state differs")
	}
	if o.ID != p.id || o.Cluster != cluster || o.LastIndex < last || o.LastTerm == 0 || o.Term < o.LastTerm || len(o.Members) != 3 || !slices.Contains(o.Removed, gone.id) {
		t.Errorf("%+v", o)
	}
	for _, m := range o.Members {
		if !m.Voter || m.Name == "" || m.PeerAddr == "" {
			t.Errorf("member %+v", m)
		}
	}
	if _, err := ReadOffline(c.peers[0].cfg.Dir, nil); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("of a running peer: %v", err)
	}
	if _, err := ReadOffline(t.TempDir(), nil); !errors.Is(err, ErrNoState) {
		t.Errorf("of an empty directory: %v", err)
	}
	c.start(p) // reading changed nothing
	c.sameState()
}

// A cluster is restored on one peer while the others go on. They learn that their
// cluster was replaced, and become members of the new one, with its state. What they
// wrote meanwhile is gone, and the ID of a removed peer does not come back.
func TestOthersFollowIntoTheNewCluster(t *testing.T) {
	c := newCluster(t, 3, nil)
	gone := c.open()
	c.join(gone)
	if err := c.peers[0].Remove(c.ctx(), gone.id); err != nil {
		t.Fatal(err)
	}
	c.stop(gone)
	p := c.peers[0]
	p.put(t, "kept", "1")
	old := p.ClusterID()
	c.stop(p)
	o := c.offline(p)
	c.peers[1].put(t, "lost", "1")
	c.until("the write is in both", func() bool { return c.peers[2].get(t, "lost") == "1" })

	if err := o.Store.Rebase(1000, true); err != nil {
		t.Fatal(err)
	}
	rev := o.Store.Revision()
	id := c.beginFrom(p, o.Store, o)
	if _, err := os.Stat(filepath.Join(p.cfg.Dir, fmt.Sprintf("replaced-%016x", old), voteFile)); err != nil {
		t.Errorf("the earlier state was not kept: %v", err)
	}
	c.start(p)
	c.restartReplaced(c.peers[1])
	c.restartReplaced(c.peers[2])
	c.allVote(3)
	if got := p.ClusterID(); got != id || got == old || c.peers[1].ClusterID() != id {
		t.Errorf("cluster %x, want %x", got, id)
	}
	for _, q := range c.peers[:3] {
		if q.get(t, "kept") != "1" || q.get(t, "lost") != "" || q.store.Revision() < rev {
			t.Errorf("%s holds kept=%q lost=%q at revision %d", q.cfg.Name, q.get(t, "kept"), q.get(t, "lost"), q.store.Revision())
		}
	}
	c.peers[2].put(t, "after", "1")
	if err := p.AddNonvoter(c.ctx(), Member{ID: gone.id, Name: "again", PeerAddr: gone.cfg.AdvertisePeer}); !errors.Is(err, ErrRemoved) {
		t.Errorf("the ID of a removed peer: %v", err)
	}
	if left := p.Expected(); len(left) != 0 || !slices.Equal(p.Replaced(), []uint64{old}) {
		t.Errorf("expected %v, replaced %x", left, p.Replaced())
	}
	// Once more: the chain of replaced clusters goes on.
	c.sameState()
	c.stop(p)
	o = c.offline(p)
	c.beginFrom(p, o.Store, o)
	c.start(p)
	c.restartReplaced(c.peers[1])
	c.restartReplaced(c.peers[2])
	c.allVote(3)
	if !slices.Equal(p.Replaced(), []uint64{id, old}) || p.get(t, "after") != "1" {
		t.Errorf("replaced %x", p.Replaced())
	}
	if aside, _ := filepath.Glob(filepath.Join(p.cfg.Dir, "replaced-*")); len(aside) != 1 {
		t.Errorf("kept aside: %v", aside)
	}
}

// Peers whose directories are lost are added to the new cluster as well; one that does
// not come back can be removed.
func TestPeersWithoutStateFollow(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.peers[0].put(t, "k", "1")
	c.sameState() // a majority has it; the one that is read below is perhaps not of it yet
	for _, p := range c.peers {
		c.stop(p)
	}
	o := c.offline(c.peers[1])
	for _, p := range c.peers {
		if err := os.RemoveAll(p.cfg.Dir); err != nil {
			t.Fatal(err)
		}
	}
	p := c.peers[1]
	c.beginFrom(p, o.Store, o)
	c.start(p)
	c.start(c.peers[0])
	c.until("the other one votes", func() bool { return len(p.Members()) == 2 && len(p.Expected()) == 1 })
	if err := p.Remove(c.ctx(), c.peers[2].id); err != nil {
		t.Fatal(err)
	}
	if e := p.Expected(); len(e) != 0 {
		t.Errorf("still expected: %v", e)
	}
	c.sameState()
	if c.peers[0].get(t, "k") != "1" {
		t.Error("the state is not there")
	}
}

// A peer of an unrelated cluster is left alone, whoever expects it.
func TestUnrelatedClusterIsLeftAlone(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.peers[0].put(t, "mine", "1")
	other := c.open()
	if err := other.Bootstrap(c.ctx()); err != nil {
		t.Fatal(err)
	}
	p := c.peers[0]
	c.stop(p)
	o := c.offline(p)
	sn := o.Store.Snapshot()
	defer sn.Close()
	_, err := BeginCluster(p.cfg.Dir, NewCluster{Self: Member{ID: p.id, Name: "p0", PeerAddr: p.cfg.AdvertisePeer}, State: sn, Replaced: []uint64{o.Cluster},
		Expected: []Member{{ID: other.id, Name: "other", PeerAddr: other.cfg.AdvertisePeer}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.start(p)
	c.leader()
	c.until("p0 leads", p.IsLeader)
	ctx, cancel := context.WithTimeout(c.ctx(), expectTimeout)
	defer cancel()
	if state, err := p.fetch(ctx, p.Expected()[0]); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("%q, %v", state, err)
	}
	other.put(t, "theirs", "1")
}

// However often the change of directories is cut off, finishing it gives the new state
// and keeps the old one.
func TestReplaceIsFinishedAfterACut(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	p.put(t, "k", "1")
	c.stop(p)
	o := c.offline(p)
	next := store.New(store.Options{})
	next.Apply(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("k"), Value: []byte("2")}})
	sn := next.Snapshot()
	defer sn.Close()
	whole := filepath.Join(t.TempDir(), "whole")
	if err := writeNext(newOSFiles(), filepath.Join(p.cfg.Dir, nextDir), 7, NewCluster{Self: o.Members[0], State: sn}, quiet(t)); err != nil {
		t.Fatal(err)
	}
	if err := markReplaced(newOSFiles(), p.cfg.Dir, o.Cluster, true); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(whole, os.DirFS(p.cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	aside := fmt.Sprintf("%s%016x", asidePrefix, o.Cluster)
	// The renames, in their order; a cut comes before each of them.
	steps := [][2]string{}
	for _, f := range stateFiles {
		steps = append(steps, [2]string{f, filepath.Join(aside, f)}, [2]string{filepath.Join(nextDir, f), f})
	}
	for cut := range len(steps) + 1 {
		dir := filepath.Join(t.TempDir(), "cut")
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, aside), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, s := range steps[:cut] {
			if err := os.Rename(filepath.Join(dir, s[0]), filepath.Join(dir, s[1])); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadOffline(dir, nil)
		if err != nil {
			t.Fatalf("cut before step %d: %v", cut, err)
		}
		r, err := got.Store.Range(&pb.RangeRequest{Key: []byte("k")})
		if err != nil || got.Cluster != 7 || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "2" {
			t.Errorf("cut before step %d: cluster %x, %v, %v", cut, got.Cluster, r, err)
		}
		for _, f := range stateFiles {
			if !exists(filepath.Join(dir, aside, f)) {
				t.Errorf("cut before step %d: %s of the old state is gone", cut, f)
			}
		}
		if exists(filepath.Join(dir, replacementFile)) || exists(filepath.Join(dir, nextDir)) {
			t.Errorf("cut before step %d: it is not finished", cut)
		}
	}
}

func TestBeginClusterRefuses(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	sn := store.New(store.Options{}).Snapshot()
	defer sn.Close()
	self := Member{ID: p.id, Name: "p0", PeerAddr: p.cfg.AdvertisePeer}
	begin := func(n NewCluster) error {
		n.State = sn
		_, err := BeginCluster(p.cfg.Dir, n, nil)
		return err
	}
	if err := begin(NewCluster{Self: self}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a running peer: %v", err)
	}
	c.stop(p)
	if err := begin(NewCluster{Self: Member{ID: 5, Name: "p0", PeerAddr: "x:1"}}); err == nil || !strings.Contains(err.Error(), "belongs to peer") {
		t.Errorf("another peer's directory: %v", err)
	}
	if err := begin(NewCluster{Self: self, Removed: []PeerID{p.id}}); !errors.Is(err, ErrRemoved) {
		t.Errorf("a removed peer: %v", err)
	}
	if err := begin(NewCluster{Self: Member{ID: p.id}}); err == nil {
		t.Error("a member without a name is taken")
	}
	c.start(p) // nothing was changed
	c.until("it leads", p.IsLeader)
}
