package store

import (
	"bytes"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// hashOf is the hash at rev of a store to which requests were applied.
func hashOf(t *testing.T, rev int64, requests ...*pb.InternalRaftRequest) Hash {
	t.Helper()
	s := New(Options{})
	for _, r := range requests {
		mustApply(t, s, r)
	}
	h, err := s.Hash(rev)
	if err != nil {
		t.Fatal(err)
	}
	// A member that came by way of a snapshot answers the same.
	other := New(Options{})
	if err := other.Restore(bytes.NewReader(snapshotBytes(t, s))); err != nil {
		t.Fatal(err)
	}
	if again, err := other.Hash(rev); err != nil || again != h {
		t.Errorf("at %d: %+v, and restored %+v, %v", rev, h, again, err)
	}
	return h
}

// The hash at a revision tells apart what readers of that revision would tell apart, and nothing else.
func TestHashIsOfWhatIsSeen(t *testing.T) {
	del := func(key string) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}
	}
	compact := func(rev int64) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: rev}}
	}
	type requests = []*pb.InternalRaftRequest
	for _, c := range []struct {
		name string
		rev  int64
		a, b requests
		same bool
	}{
		{"what came later", 3, requests{put("a", "1"), put("b", "1")}, requests{put("a", "1"), put("b", "1"), put("a", "2"), del("b")}, true},
		{"another value", 3, requests{put("a", "1"), put("b", "1")}, requests{put("a", "1"), put("b", "2")}, false},
		{"another older version", 3, requests{put("a", "1"), put("a", "2")}, requests{put("a", "x"), put("a", "2")}, true},
		{"another older version, at its revision", 2, requests{put("a", "1"), put("a", "2")}, requests{put("a", "x"), put("a", "2")}, false},
		{"another key deleted", 4, requests{put("a", "1"), del("a"), put("b", "1")}, requests{put("c", "1"), del("c"), put("b", "1")}, true},
		{"deleted at another revision", 4, requests{put("a", "1"), del("a"), put("b", "1")}, requests{put("a", "1"), put("b", "1"), del("a")}, false},
		{"at a compaction, before it and after", 3, requests{put("a", "1"), put("a", "2")}, requests{put("a", "1"), put("a", "2"), put("b", "1"), compact(3)}, true},
		{"at a deletion that is compacted, before and after", 4, requests{put("a", "1"), put("b", "1"), del("a")}, requests{put("a", "1"), put("b", "1"), del("a"), put("c", "1"), compact(4)}, true},
		{"an older version compacted", 4, requests{put("a", "1"), put("a", "2"), put("b", "1"), compact(3)}, requests{put("a", "x"), put("a", "2"), put("b", "1"), compact(3)}, true},
		{"a deleted key compacted", 5, requests{put("a", "1"), del("a"), put("b", "1"), put("b", "2"), compact(3)}, requests{put("c", "1"), del("c"), put("b", "1"), put("b", "2"), compact(3)}, true},
		{"a version after the compaction", 4, requests{put("a", "1"), put("b", "1"), put("b", "x"), put("b", "2"), compact(3)}, requests{put("a", "1"), put("b", "1"), put("b", "y"), put("b", "2"), compact(3)}, false},
		{"a key that is older than the compaction", 4, requests{put("a", "1"), put("b", "1"), put("b", "2"), compact(3)}, requests{put("a", "2"), put("b", "1"), put("b", "2"), compact(3)}, false},
	} {
		a, b := hashOf(t, c.rev, c.a...), hashOf(t, c.rev, c.b...)
		if (a.Hash == b.Hash) != c.same {
			t.Errorf("%s: %x and %x", c.name, a.Hash, b.Hash)
		}
	}
}
