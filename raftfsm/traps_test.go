package raftfsm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/store"
)

// A leader that was deposed serves no linearizable read of old state, in the three scenes in which hashicorp/raft's
// VerifyLeader may confirm it: its main loop stalls; it is cut off and has not noticed; answers of both followers
// are in flight from before. TestDeposedLeaderServesNoRead plays stall and answers together. With
// VerifyLeader and the commit index in place of the read index, the scenes of the stall and of the answers served
// the old value.
func TestDeposedLeaderInThreeScenes(t *testing.T) {
	for _, scene := range []struct {
		name            string
		stall, inFlight bool
	}{
		{"its main loop stalls", true, false},
		{"it is cut off", false, false},
		{"answers in flight", false, true},
	} {
		t.Run(scene.name, func(t *testing.T) {
			gates := map[string]*gate{}
			c := newCluster(t, 3, func(c *Config) {
				c.DiskStall, c.DiskDeadline = time.Hour, time.Hour
				g := &gate{}
				gates[c.Name] = g
				inner := c.faults.conn
				c.faults.conn = func(nc net.Conn, peer PeerID) net.Conn { return &heldConn{inner(nc, peer), g} }
				withStallLog(c)
			})
			old := c.leader()
			old.put(t, "x", "0")
			c.sameState()
			release, open := func() {}, func() {}
			if scene.stall {
				release = old.log0(t).stall()
				go old.Propose(c.ctx(), putReq("stuck", "1"))
				c.until("the main loop has something to write", func() bool { return old.logs.volatileCount() > 0 })
				// What raft itself acts upon is written from the main loop.
				go old.raft.AddNonvoter("00000000000000ff", "127.0.0.1:1", 0, 0)
			}
			if scene.inFlight {
				open = gates[old.cfg.Name].close()
				c.until("answers of two peers are in flight", func() bool { return gates[old.cfg.Name].held.Load() >= 2 })
			}
			defer func() { open(); release() }()
			c.net.isolate(old.id, true, c.peers)
			passed := make(chan error, 64)
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
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
			for range cap(passed) {
				go func() {
					if err := old.ReadIndex(ctx); err != nil {
						passed <- err
						return
					}
					if old.get(t, "x") != "1" {
						passed <- errOldState
						return
					}
					passed <- nil
				}()
			}
			open()
			release()
			for range cap(passed) {
				if err := <-passed; errors.Is(err, errOldState) {
					t.Fatal(err)
				}
			}
		})
	}
}

var errOldState = errors.New("a deposed leader served a linearizable read of old state")

// hashicorp/raft's transfer waits for a peer that does not keep up, and refuses writes as long as it waits. One that
// is behind is not asked: the answer comes at once, and writes go on. Without the measure of the lag, every write
// during the transfer is held up for an election timeout, and this test's put does not return before the transfer.
func TestTransferToAStuckPeerIsRefused(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) {
		c.PromoteLag = 3
		c.DiskStall, c.DiskDeadline = time.Hour, time.Hour
		withStallLog(c)
	})
	l, stuck := c.leader(), c.followers()[0]
	c.sameState()
	defer stuck.log0(t).stall()()
	for i := range 20 {
		l.put(t, fmt.Sprint("k", i), "v")
	}
	began := time.Now()
	if err := l.TransferLeadership(c.ctx(), stuck.id); !errors.Is(err, ErrLagging) {
		t.Fatalf("transfer to a peer that does not write: %v", err)
	}
	term := l.raft.CurrentTerm()
	l.put(t, "after", "1")
	if !l.IsLeader() || l.raft.CurrentTerm() != term {
		t.Fatal("the leadership is gone")
	}
	t.Logf("refused and written after it in %v", time.Since(began))
	// The peer that keeps up gets it.
	if err := l.TransferLeadership(c.ctx(), 0); err != nil {
		t.Fatal(err)
	}
	if id, _ := l.Leader(); id == stuck.id {
		t.Fatal("the stuck peer leads")
	}
}

// A snapshot does not wait for traffic behind a change of members, nor for a change that never commits.
// hashicorp/raft refuses one ("wait until the configuration entry has been applied") when the state machine does not
// count configurations, as one without batches does not: fsm without ApplyBatch fails this test so.
func TestSnapshotBesideAConfiguration(t *testing.T) {
	c := newCluster(t, 3, func(c *Config) { c.TrailingBytes = 1 })
	l := c.leader()
	for i := range 100 {
		l.put(t, fmt.Sprint("k", i), "v")
	}
	if err := l.raft.AddNonvoter("00000000000000ff", "127.0.0.1:1", 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	first := func() uint64 {
		i, err := l.logs.FirstIndex()
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	if err := l.snapshotNow(100, 100); err != nil {
		t.Fatalf("a snapshot whose last entry is a configuration: %v", err)
	}
	if first() < 50 {
		t.Fatalf("the log still starts at %d", first())
	}
	// Without a majority the next configuration stays pending.
	for i := range 100 {
		l.put(t, fmt.Sprint("m", i), "v")
	}
	for _, f := range c.followers() {
		c.stop(f)
	}
	before := first()
	pending := l.raft.RemoveServer("00000000000000ff", 0, 0)
	if err := l.snapshotNow(100, 100); err != nil {
		t.Fatalf("a snapshot beside a pending configuration: %v", err)
	}
	if first() < before+50 {
		t.Fatalf("the log still starts at %d, as before at %d", first(), before)
	}
	if err := pending.Error(); err == nil {
		t.Fatal("the scene is wrong: the configuration was committed by one of three")
	}
}

// gatedSink takes nothing while it is shut.
type gatedSink struct {
	memSink
	open  chan struct{}
	began chan struct{}
}

func (g *gatedSink) Write(b []byte) (int, error) {
	select {
	case <-g.began:
	default:
		close(g.began)
	}
	<-g.open
	return g.memSink.Write(b)
}

func applyPut(t *testing.T, f *fsm, index uint64, k, v string) {
	t.Helper()
	payload, err := pbMarshal(putReq(k, v))
	if err != nil {
		t.Fatal(err)
	}
	f.Apply(command(t, index, record{kind: recRequest, peer: 9, boot: 1, seq: index, payload: payload}))
}

// A snapshot is written beside apply: entries are applied while its sink takes nothing, and it holds the state
// of the moment when it was taken.
func TestApplyGoesOnWhileASnapshotIsWritten(t *testing.T) {
	f := bareFSM()
	for i := uint64(1); i <= 1000; i++ {
		applyPut(t, f, i, fmt.Sprint("k", i), "old")
	}
	want := fsmSnapshotBytes(t, f)
	s, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	sink := &gatedSink{open: make(chan struct{}), began: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.Persist(sink) }()
	<-sink.began
	for i := uint64(1001); i <= 2000; i++ {
		applyPut(t, f, i, fmt.Sprint("k", i-1000), "new")
	}
	close(sink.open)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.Release()
	if !bytes.Equal(sink.Bytes(), want) {
		t.Fatal("the snapshot holds changes that were made after it was taken")
	}
}

// stallReader stops before its last bytes, until it is let go on.
type stallReader struct {
	io.Reader
	left  int
	there chan struct{}
	goOn  chan struct{}
}

func (s *stallReader) Close() error { return nil }

func (s *stallReader) Read(b []byte) (int, error) {
	if s.left <= 0 && s.there != nil {
		close(s.there)
		s.there = nil
		<-s.goOn
	}
	n, err := s.Reader.Read(b[:min(len(b), 4096)])
	s.left -= n
	return n, err
}

// Restore runs in the handler of the leader's call, for as long as a snapshot is: reads of the old state go on
// meanwhile, and see the new one as a whole once it is complete. With a restore into the live state the first read
// here sees half of it.
func TestReadsGoOnWhileASnapshotIsStaged(t *testing.T) {
	src, dst := bareFSM(), bareFSM()
	for i := uint64(1); i <= 2000; i++ {
		applyPut(t, src, i, fmt.Sprint("k", i), "new")
	}
	applyPut(t, dst, 1, "old", "1")
	b := fsmSnapshotBytes(t, src)
	r := &stallReader{Reader: bytes.NewReader(b), left: len(b) - 8192, there: make(chan struct{}), goOn: make(chan struct{})}
	there := r.there
	done := make(chan error, 1)
	go func() { done <- dst.Restore(r) }()
	<-there
	count := func(s *store.Store) int64 {
		res, err := s.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		return res.Count
	}
	if n := count(dst.store); n != 1 {
		t.Fatalf("%d keys are seen while the snapshot is read", n)
	}
	close(r.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := count(dst.store); n != 2000 {
		t.Fatalf("%d keys are seen after it", n)
	}
}
