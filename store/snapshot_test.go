package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/membershippb"
	"pgregory.net/rapid"
)

// sample is a store with something in every part of the format.
func sample(t testing.TB) *Store {
	s := New(Options{})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 7, TTL: 60}})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 9, TTL: 10}})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{Checkpoints: []*pb.LeaseCheckpoint{{ID: 9, Remaining_TTL: 4}}}})
	mustApply(t, s, put("old", "1"))
	mustApply(t, s, put("old", "2"))
	mustApply(t, s, put("gone", "x"))
	mustApply(t, s, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("leased"), Value: []byte("v"), Lease: 7}})
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("gone")}})
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	mustApply(t, s, put("new", "1"))
	mustApply(t, s, put("new", "2"))
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("new")}})
	mustApply(t, s, &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 3, Alarm: pb.AlarmType_NOSPACE}})
	mustApply(t, s, &pb.InternalRaftRequest{ClusterVersionSet: &membershippb.ClusterVersionSetRequest{Ver: "3.7.0"}})
	addUsers(t, s)
	mustApply(t, s, &pb.InternalRaftRequest{Authenticate: &pb.InternalAuthenticateRequest{Name: "alice", SimpleToken: "x"}})
	mustApply(t, s, &pb.InternalRaftRequest{ClusterMemberAttrSet: &membershippb.ClusterMemberAttrSetRequest{
		Member_ID: 3, MemberAttributes: &membershippb.Attributes{Name: "three", ClientUrls: []string{"https://10.0.0.3:2379"}}}})
	return s
}

func TestRestoreBringsEverythingBack(t *testing.T) {
	s := sample(t)
	r := New(Options{})
	mustApply(t, r, put("of the state before", "x"))
	if err := r.Restore(bytes.NewReader(snapshotBytes(t, s))); err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprint(s.Auth().Users(), s.Auth().Roles(), s.Auth().Enabled(), s.Auth().Revision(), s.Auth().Logins(), s.Leases(), s.Alarms(), s.Members(), s.ClusterVersion(), s.Revision(), s.CompactRevision(), s.Size()),
		fmt.Sprint(r.Auth().Users(), r.Auth().Roles(), r.Auth().Enabled(), r.Auth().Revision(), r.Auth().Logins(), r.Leases(), r.Alarms(), r.Members(), r.ClusterVersion(), r.Revision(), r.CompactRevision(), r.Size()); a != b {
		t.Errorf("restored\n%s\nwant\n%s", b, a)
	}
	resp, err := r.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || len(resp.Kvs) != 2 || string(resp.Kvs[0].Key) != "leased" || string(resp.Kvs[1].Value) != "2" {
		t.Errorf("restored keys %v, %v", resp, err)
	}
	if keys := r.LeaseKeys(7); len(keys) != 1 || string(keys[0]) != "leased" {
		t.Errorf("keys of the lease: %q", keys)
	}
}

// Programs that know only the first version of the format read a state without
// users; one with users must not seem to them to have none.
func TestOldProgramsReadWhatTheyCan(t *testing.T) {
	s := New(Options{})
	mustApply(t, s, put("k", "v"))
	if v := snapshotBytes(t, s)[len(snapshotMagic)+3]; v != 1 {
		t.Errorf("without users the format has version %d", v)
	}
	addUsers(t, s)
	good := snapshotBytes(t, s)
	if v := good[len(snapshotMagic)+3]; v != 2 {
		t.Errorf("with users the format has version %d", v)
	}
	good[len(snapshotMagic)+3] = 3
	if err := s.Restore(bytes.NewReader(withChecksums(good))); err == nil || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("a later version: %v", err)
	}
}

// A snapshot is what it was when it was taken, whatever is applied later.
func TestSnapshotStandsStill(t *testing.T) {
	s := New(Options{})
	for i := range 1000 {
		mustApply(t, s, put(fmt.Sprintf("k%03d", i%300), fmt.Sprint(i)))
	}
	sn := s.Snapshot()
	want := snapshotBytes(t, s)
	for i := range 1000 {
		mustApply(t, s, put(fmt.Sprintf("k%03d", i%400), "later"))
	}
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}})
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	var got bytes.Buffer
	if _, err := sn.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("the snapshot changed with the store")
	}
	if resp, err := sn.Range(&pb.RangeRequest{Key: []byte("k299")}); err != nil || string(resp.Kvs[0].Value) != "899" {
		t.Errorf("read of the snapshot: %v, %v", resp, err)
	}
}

// Whichever byte is damaged, Restore says so and leaves the state alone.
func TestRestoreDetectsEveryFlippedByte(t *testing.T) {
	good := snapshotBytes(t, sample(t))
	s := New(Options{})
	mustApply(t, s, put("mine", "1"))
	before := snapshotBytes(t, s)
	for i := range good {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= flip
			err := s.Restore(bytes.NewReader(bad))
			if err == nil {
				t.Fatalf("byte %d xor %02x was not noticed", i, flip)
			}
			if !errors.Is(err, ErrDamagedSnapshot) {
				t.Fatalf("byte %d xor %02x: %v", i, flip, err)
			}
			if !strings.Contains(err.Error(), "byte ") {
				t.Fatalf("byte %d xor %02x: error does not say where: %v", i, flip, err)
			}
		}
	}
	if !bytes.Equal(snapshotBytes(t, s), before) {
		t.Error("a failed restore changed the state")
	}
}

func TestRestoreDetectsTruncation(t *testing.T) {
	good := snapshotBytes(t, sample(t))
	s := New(Options{})
	for n := range good {
		if err := s.Restore(bytes.NewReader(good[:n])); !errors.Is(err, ErrDamagedSnapshot) {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(good), err)
		}
	}
}

// What follows a snapshot in a stream is not touched.
func TestRestoreReadsNoFurther(t *testing.T) {
	r := io.MultiReader(bytes.NewReader(snapshotBytes(t, sample(t))), strings.NewReader("rest"))
	if err := New(Options{}).Restore(r); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "rest" {
		t.Errorf("left %q", rest)
	}
}

type brokenPipe struct{ room int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.room -= len(p); b.room < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestWriteToReportsErrors(t *testing.T) {
	s := sample(t)
	for room := range len(snapshotBytes(t, s)) {
		if _, err := s.Snapshot().WriteTo(&brokenPipe{room}); !errors.Is(err, io.ErrClosedPipe) {
			t.Fatalf("room for %d bytes: %v", room, err)
		}
	}
}

// Frames are split, and values are not.
func TestLargeSnapshot(t *testing.T) {
	s := New(Options{})
	big := strings.Repeat("v", 3*frameTarget)
	for i := range 2000 {
		mustApply(t, s, put(fmt.Sprintf("key-%05d", i), strings.Repeat("x", 300)))
	}
	mustApply(t, s, put("big", big))
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 1000}})
	r := New(Options{})
	if err := r.Restore(bytes.NewReader(snapshotBytes(t, s))); err != nil {
		t.Fatal(err)
	}
	a, _ := s.Hash(0)
	b, _ := r.Hash(0)
	if a != b || r.Size() != s.Size() {
		t.Errorf("restored %+v of %d bytes, want %+v of %d", b, r.Size(), a, s.Size())
	}
}

func backwards(fs ...func()) {
	for _, f := range slices.Backward(fs) {
		f()
	}
}

// What is read, decoded and loaded at the same time gives what it gives in turn, over more than a few batches.
func TestRestoreBeside(t *testing.T) {
	s := New(Options{})
	for i := range 3 * batchBytes / 4096 {
		mustApply(t, s, put(fmt.Sprintf("key-%05d", i%700), strings.Repeat(string(rune('a'+i%26)), 4096)))
	}
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 1500}})
	want := snapshotBytes(t, s)
	for name, each := range map[string]func(...func()){"backwards": backwards, "side by side": func(fs ...func()) {
		var wg sync.WaitGroup
		for _, f := range fs {
			wg.Go(f)
		}
		wg.Wait()
	}} {
		r := New(Options{})
		if err := r.RestoreBeside(bytes.NewReader(want), each); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(snapshotBytes(t, r), want) {
			t.Errorf("%s: it differs", name)
		}
		// Buffers are used again, batch by batch: what was cut off late is found too.
		if err := New(Options{}).RestoreBeside(bytes.NewReader(want[:len(want)-4096]), each); !errors.Is(err, ErrDamagedSnapshot) {
			t.Errorf("%s, cut off: %v", name, err)
		}
	}
}

// Restore takes any bytes without panic, and what it takes is a whole state:
// it can be written and restored again to the same.
func FuzzRestore(f *testing.F) {
	f.Add(snapshotBytes(f, sample(f)))
	f.Add(snapshotBytes(f, New(Options{})))
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) { restoreForged(t, b) })
}

// The same, for snapshots changed here and there, in every test run.
func TestRestoreOfForgedSnapshots(t *testing.T) {
	good := snapshotBytes(t, sample(t))
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(good)
		for n := rapid.IntRange(1, 4).Draw(t, "changes"); n > 0; n-- {
			at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				b[at] = rapid.Byte().Draw(t, "byte")
			case 1:
				b = append(b[:at], b[min(len(b), at+rapid.IntRange(1, 9).Draw(t, "cut")):]...)
			case 2:
				from := rapid.IntRange(0, len(good)-10).Draw(t, "from")
				b = slices.Insert(b, at, good[from:from+9]...)
			}
			if len(b) == 0 {
				b = []byte{0}
			}
		}
		restoreForged(t, b)
	})
}

func restoreForged(t rapid.TB, b []byte) {
	// Damaged checksums would end nearly every input at once.
	b = withChecksums(b)
	s := New(Options{})
	err := s.Restore(bytes.NewReader(b))
	other := New(Options{})
	if again := other.RestoreBeside(bytes.NewReader(b), backwards); fmt.Sprint(again) != fmt.Sprint(err) {
		t.Fatalf("in turn: %v, in another order: %v", err, again)
	}
	if err != nil {
		if s.Revision() != 1 {
			t.Fatal("a failed restore changed the state")
		}
		return
	}
	first := snapshotBytes(t, s)
	if !bytes.Equal(first, snapshotBytes(t, other)) {
		t.Fatal("restored in another order, it differs")
	}
	r := New(Options{})
	if err := r.Restore(bytes.NewReader(first)); err != nil {
		t.Fatalf("what was restored cannot be restored again: %v", err)
	}
	if !bytes.Equal(first, snapshotBytes(t, r)) {
		t.Fatal("restored again, it differs")
	}
	s.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	s.Apply(put("a", "b"))
	s.Apply(&pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}})
	s.Apply(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
}
