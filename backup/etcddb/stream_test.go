package etcddb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"pgregory.net/rapid"

	"github.com/tripod-cluster/tripod/store"
)

// streamed is the stream of a snapshot, which must be as long as it says.
func streamed(t rapid.TB, sn *store.Snapshot) []byte {
	t.Helper()
	s, err := NewStream(sn, origin)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if n, err := s.WriteTo(&b); err != nil || n != s.Size() || n != int64(b.Len()) {
		t.Fatalf("%d bytes came, %d were told, %d were announced, %v", b.Len(), n, s.Size(), err)
	}
	return b.Bytes()
}

// A stream and a file are the same bytes, whatever the store went through, and bbolt
// takes them.
func TestStreamIsTheFile(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := store.New(store.Options{})
		do := func(r *pb.InternalRaftRequest) {
			if res := s.Apply(r); res.Err != nil {
				t.Fatal(res.Err)
			}
		}
		for i := range rapid.IntRange(0, 60).Draw(t, "changes") {
			key := fmt.Sprintf("key%02d", rapid.IntRange(0, 20).Draw(t, "key"))
			switch rapid.IntRange(0, 6).Draw(t, "change") {
			case 0:
				do(&pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}})
			case 1:
				if s.Revision() > max(s.CompactRevision(), 1) {
					do(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
				}
			case 2:
				do(&pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: int64(i+1) * (1 - 2*int64(i%2)), TTL: 60}})
			default:
				n := rapid.SampledFrom([]int{0, 1, 127, 128, 1000, 4000, 5000, 70_000}).Draw(t, "length")
				do(put(key, strings.Repeat("v", n), 0))
			}
		}
		sn := s.Snapshot()
		defer sn.Close()
		path := filepath.Join(dir, "db")
		defer os.Remove(path)
		if err := Write(path, sn, origin); err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := streamed(t, sn); !bytes.Equal(got, file) {
			t.Fatalf("the stream has %d bytes and is not the file, of %d", len(got), len(file))
		}
		if _, err := Verify(path); err != nil {
			t.Fatal(err)
		}
		db := openBolt(t, path)
		defer db.Close()
		if got := contents(t, db); len(got) != 11 {
			t.Fatalf("%d buckets", len(got))
		}
	})
}

// What is streamed is what was counted, or an error.
func TestChangedValueIsNoticed(t *testing.T) {
	value := "before"
	s, err := newStream([]bucket{{"b", func(tr *tree) error { return tr.put([]byte("k"), []byte(value)) }}}, 1024)
	if err != nil {
		t.Fatal(err)
	}
	value = strings.Repeat("v", 3000)
	if _, err := s.WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a longer value: %v", err)
	}
	if _, err := newStream([]bucket{{"b", func(tr *tree) error { return errors.New("no keys") }}}, 1024); err == nil || !strings.Contains(err.Error(), "bucket b") {
		t.Errorf("a bucket that fails: %v", err)
	}
	tr := &tree{w: newPageWriter(nil, 1024)}
	failed := errors.New("encode")
	encode := func([]byte) ([]byte, error) { return nil, failed }
	if err := tr.putEncoded([]byte("k"), 1, encode); err != nil {
		t.Errorf("a value was encoded to be counted: %v", err)
	}
}

// room takes so many bytes, and fails then.
type room int64

var errNoRoom = errors.New("no room")

func (r *room) Write(p []byte) (int, error) {
	n := min(int64(*r), int64(len(p)))
	if *r -= room(n); n < int64(len(p)) {
		return int(n), errNoRoom
	}
	return len(p), nil
}

func TestErrorOfTheWriterIsReturned(t *testing.T) {
	sn := sample(t, 2000).Snapshot()
	defer sn.Close()
	s, err := NewStream(sn, origin)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < s.Size(); at += 10_007 {
		r := room(at)
		if n, err := s.WriteTo(&r); !errors.Is(err, errNoRoom) || n != at {
			t.Fatalf("room for %d of %d bytes: %d written, %v", at, s.Size(), n, err)
		}
	}
	for _, at := range []int64{s.Size() - 1, s.Size() - 32} {
		r := room(at)
		if _, err := s.WriteTo(&r); !errors.Is(err, errNoRoom) {
			t.Fatalf("room for %d of %d bytes: %v", at, s.Size(), err)
		}
	}
	r := room(s.Size())
	if _, err := s.WriteTo(&r); err != nil || r != 0 {
		t.Fatalf("%d bytes are left, %v", r, err)
	}
}

// A stream takes no memory for each key.
func TestStreamNeedsLittleMemory(t *testing.T) {
	st := store.New(store.Options{})
	const keys, size = 20_000, 1 << 10
	for i := range keys {
		apply(t, st, put(fmt.Sprintf("key%06d", i), strings.Repeat("v", size), 0))
	}
	sn := st.Snapshot()
	defer sn.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := NewStream(sn, origin)
	if err != nil {
		t.Fatal(err)
	}
	n, err := s.WriteTo(io.Discard)
	if err != nil || n < keys*size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 1<<20 {
		t.Errorf("%d bytes were allocated to stream %d", after.TotalAlloc-before.TotalAlloc, n)
	}
}
