package raftfsm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tripod-cluster/tripod/store"
)

func frequentSnapshots(c *Config) {
	c.SnapshotEntries = 50
	c.SnapshotInterval = 20 * time.Millisecond
	c.TrailingBytes = 1 // at least 16 entries stay
}

// A follower that was away while the log was truncated gets the state by snapshot, with its own proposals'
// memory, the members and the store.
func TestFollowerFarBehindCatchesUpBySnapshot(t *testing.T) {
	c := newCluster(t, 3, frequentSnapshots)
	c.leader().put(t, "before", "1")
	f := c.followers()[0]
	c.stop(f)
	l := c.leader()
	for i := range 400 {
		l.put(t, fmt.Sprint("k", i%20), strings.Repeat("x", 1000))
	}
	c.until("the log is truncated beyond the follower", func() bool {
		first, err := l.logs.FirstIndex()
		return err == nil && first > 150
	})
	c.start(f)
	if err := f.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	c.sameState()
	f.put(t, "after", "1")
	if len(f.Members()) != 3 || f.ClusterID() != l.ClusterID() {
		t.Fatalf("the follower knows members %v of cluster %x", f.Members(), f.ClusterID())
	}
	// And it restarts from what it got.
	c.stop(f)
	c.start(f)
	if err := f.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	c.sameState()
}

// Runs that are each too short for raft's own snapshot loop still truncate the log.
func TestLogIsTruncatedAcrossShortRuns(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) {
		c.SnapshotEntries, c.TrailingBytes = 60, 1
		c.SnapshotInterval = time.Hour // the first look comes early nonetheless
	})
	p := c.peers[0]
	for run := range 4 {
		for i := range 30 {
			p.put(t, fmt.Sprintf("k%d-%d", run, i), "v")
		}
		c.stop(p)
		c.start(p)
	}
	c.until("the log is truncated", func() bool {
		first, err := p.logs.FirstIndex()
		return err == nil && first > 40
	})
	if got := p.get(t, "k0-0"); got != "v" {
		t.Fatal("state is gone")
	}
}

type memSink struct {
	bytes.Buffer
	cancelled bool
}

func (m *memSink) ID() string    { return "mem" }
func (m *memSink) Close() error  { return nil }
func (m *memSink) Cancel() error { m.cancelled = true; return nil }

func bareFSM() *fsm {
	f := newFSM(store.New(store.Options{}), 1, 1)
	f.resolve = func([]outcome) {}
	f.barrier = func(uint64) {}
	f.lease = func(store.LeaseChange) {}
	f.restored = func(*session) {}
	f.committed = func(uint64, uint64) {}
	close(f.ready)
	f.fatal = func(err error) { panic(err) }
	return f
}

func command(t testing.TB, index uint64, r record) *raft.Log {
	t.Helper()
	return &raft.Log{Index: index, Term: 2, Type: raft.LogCommand, Data: sealEntry(r.appendTo(newEntry(100)))}
}

func fsmSnapshotBytes(t testing.TB, f *fsm) []byte {
	t.Helper()
	s, err := f.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	var m memSink
	if err := s.Persist(&m); err != nil {
		t.Fatal(err)
	}
	return m.Bytes()
}

// Restore is all or nothing: a snapshot damaged in any byte, or cut off anywhere, changes nothing.
func TestRestoreOfADamagedSnapshotChangesNothing(t *testing.T) {
	src := bareFSM()
	for i := uint64(1); i < 6; i++ {
		payload, err := pbMarshal(putReq(fmt.Sprint("k", i), "v"))
		if err != nil {
			t.Fatal(err)
		}
		src.Apply(command(t, i, record{kind: recRequest, peer: 9, boot: 1, seq: i * 2, payload: payload}))
	}
	src.Apply(command(t, 6, record{kind: recMember, peer: 9, boot: 1, seq: 20, payload: []byte(`{"id":9,"name":"nine"}`)}))
	src.Apply(command(t, 7, record{kind: recMemberGone, peer: 9, boot: 1, seq: 21, payload: []byte(`{"id":8}`)}))
	good := fsmSnapshotBytes(t, src)

	dst := bareFSM()
	payload, err := pbMarshal(putReq("old", "state"))
	if err != nil {
		t.Fatal(err)
	}
	dst.Apply(command(t, 1, record{kind: recRequest, peer: 5, boot: 1, seq: 1, payload: payload}))
	before := fsmSnapshotBytes(t, dst)
	restore := func(b []byte) error { return dst.Restore(io.NopCloser(bytes.NewReader(b))) }
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if err := restore(bad); err == nil {
			t.Fatalf("a flipped bit in byte %d of %d goes unseen", i, len(good))
		}
		if err := restore(good[:i]); err == nil {
			t.Fatalf("a snapshot cut off at byte %d of %d is taken", i, len(good))
		}
	}
	if !bytes.Equal(fsmSnapshotBytes(t, dst), before) {
		t.Fatal("a failed restore changed the state")
	}
	if err := restore(good); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(fsmSnapshotBytes(t, dst), good) {
		t.Fatal("the restored state differs from the snapshot")
	}
	if index, term := dst.applied(); index != 7 || term != 2 || !dst.isRemoved(8) {
		t.Fatalf("restored to index %d, term %d", index, term)
	}
}

// The process ended between installing a snapshot and emptying the log: the log ends before the snapshot.
func TestLogThatEndsBeforeTheSnapshot(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	for i := range 30 {
		p.put(t, fmt.Sprint("k", i), "v")
	}
	if err := p.snapshotNow(30, 1); err != nil {
		t.Fatal(err)
	}
	// What a crash leaves: the snapshot is there, the newest entries of the log are not.
	last, err := p.logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	c.stop(p)
	w, err := openWAL(filepath.Join(p.cfg.Dir, walDir), newOSFiles(), segmentBytes, newHLog(quiet(t), "wal"), quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteRange(last-3, last); err != nil {
		t.Fatal(err)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	c.start(p)
	p.put(t, "more", "1")
	if got := p.get(t, "k29"); got != "v" {
		t.Fatal("state is gone")
	}
}

// A damaged newest snapshot is not the end: the one before it and the log still hold all.
func TestOlderSnapshotIsUsedWhenTheNewestIsDamaged(t *testing.T) {
	c := newCluster(t, 1, func(c *Config) { c.TrailingBytes = 1 << 30 })
	p := c.peers[0]
	for round := range 2 {
		for i := range 20 {
			p.put(t, fmt.Sprintf("k%d-%d", round, i), "v")
		}
		if err := p.snapshotNow(20, 20); err != nil {
			t.Fatal(err)
		}
	}
	p.put(t, "last", "1")
	snaps, err := p.snaps.List()
	if err != nil || len(snaps) != 2 {
		t.Fatal(snaps, err)
	}
	c.stop(p)
	path := filepath.Join(p.cfg.Dir, "snapshots", snaps[0].ID, "state.bin")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c.start(p)
	if err := p.ReadIndex(c.ctx()); err != nil {
		t.Fatal(err)
	}
	if p.get(t, "last") != "1" || p.get(t, "k1-19") != "v" || p.get(t, "k0-0") != "v" {
		t.Fatal("state is gone")
	}
}
