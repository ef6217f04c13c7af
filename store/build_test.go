package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// rebuild exports a store and builds another one from it.
func rebuild(t testing.TB, s *Store) *Store {
	t.Helper()
	sn := s.Snapshot()
	defer sn.Close()
	b, err := NewBuilder(sn.CompactRevision())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range sn.Leases() {
		if err := b.Lease(l); err != nil {
			t.Fatal(err)
		}
	}
	var rev, sub int64 = 0, 0
	err = sn.Versions(func(kv *mvccpb.KeyValue, at int64) error {
		if kv.ModRevision == rev && at != sub+1 || kv.ModRevision > rev && at != 0 || kv.ModRevision < rev {
			t.Fatalf("after %d.%d comes %d.%d", rev, sub, kv.ModRevision, at)
		}
		rev, sub = kv.ModRevision, at
		return b.Version(proto.CloneOf(kv))
	})
	if err != nil {
		t.Fatal(err)
	}
	r, cleared, err := b.Build(sn.Revision())
	if err != nil || cleared != 0 {
		t.Fatalf("%d keys lost their lease, %v", cleared, err)
	}
	return r
}

// A store that is built from what another one retained holds the same, and goes
// on to hold the same: whatever was deleted, leased and compacted.
func TestBuiltFromVersions(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := New(Options{})
		for id := range int64(3) {
			mustApply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id + 1, TTL: 60}})
		}
		step := func() *pb.InternalRaftRequest {
			key := []byte(fmt.Sprintf("k%02d", rng.IntN(20)))
			switch n := rng.IntN(20); {
			case n < 10:
				return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: key, Value: []byte(fmt.Sprint(rng.Int())), Lease: rng.Int64N(4)}}
			case n < 13:
				return &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: key}}
			case n < 15:
				return &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: key, RangeEnd: []byte("z")}}
			case n < 18:
				var ops []*pb.RequestOp
				for i := range 1 + rng.IntN(4) {
					ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(fmt.Sprintf("k%02d", 5*i)), Value: key}}})
				}
				return &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: ops}}
			}
			return &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 1 + rng.Int64N(s.Revision())}}
		}
		for range 200 {
			s.Apply(step()) // a compaction may be refused
		}
		r := rebuild(t, s)
		if a, b := snapshotBytes(t, s), snapshotBytes(t, r); !bytes.Equal(a, b) || s.Size() != r.Size() {
			t.Fatalf("seed %d: the store that was built differs (sizes %d, %d)", seed, s.Size(), r.Size())
		}
		for range 50 {
			q := step()
			s.Apply(proto.CloneOf(q))
			r.Apply(q)
		}
		if a, b := snapshotBytes(t, s), snapshotBytes(t, r); !bytes.Equal(a, b) {
			t.Fatalf("seed %d: the store that was built differs after more changes", seed)
		}
	}
}

func TestBuilderLeavesOutWhatIsCompacted(t *testing.T) {
	b, err := NewBuilder(5)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range []*mvccpb.KeyValue{
		{Key: []byte("a"), ModRevision: 2, CreateRevision: 2, Version: 1},
		{Key: []byte("a"), ModRevision: 3, CreateRevision: 2, Version: 2, Lease: 77},
		{Key: []byte("b"), ModRevision: 3, CreateRevision: 3, Version: 1},
		{Key: []byte("b"), ModRevision: 4},
		{Key: []byte("c"), ModRevision: 5},
		{Key: []byte("d"), ModRevision: 6, CreateRevision: 6, Version: 1},
	} {
		if err := b.Version(kv); err != nil {
			t.Fatal(err)
		}
	}
	s, cleared, err := b.Build(0)
	if err != nil || cleared != 1 {
		t.Fatalf("%d keys lost a lease that does not exist, %v", cleared, err)
	}
	if s.Revision() != 6 || s.CompactRevision() != 5 {
		t.Errorf("revision %d, compacted at %d", s.Revision(), s.CompactRevision())
	}
	resp, err := s.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || fmt.Sprintf("%d %s %d %d", len(resp.Kvs), resp.Kvs[0].Key, resp.Kvs[0].Version, resp.Kvs[0].Lease) != "2 a 2 0" {
		t.Errorf("%v, %v", resp, err)
	}
	if err := New(Options{}).Restore(bytes.NewReader(snapshotBytes(t, s))); err != nil {
		t.Errorf("its snapshot: %v", err)
	}
}

func TestBuilderRefusesWhatIsOutOfPlace(t *testing.T) {
	kv := func(key string, mod, create, version int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), ModRevision: mod, CreateRevision: create, Version: version}
	}
	for name, kvs := range map[string][]*mvccpb.KeyValue{
		"revision 0":        {kv("a", 0, 0, 1)},
		"backwards":         {kv("a", 3, 3, 1), kv("b", 2, 2, 1)},
		"no key":            {kv("", 2, 2, 1)},
		"created later":     {kv("a", 2, 3, 1)},
		"negative version":  {kv("a", 2, 2, -1)},
		"tombstone of none": {kv("a", 7, 0, 0)},
	} {
		b, err := NewBuilder(4)
		for _, v := range kvs {
			if err == nil {
				err = b.Version(v)
			}
		}
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if _, err := NewBuilder(-2); err == nil {
		t.Error("compact revision -2 is taken")
	}
	b, _ := NewBuilder(-1)
	if err := errors.Join(b.Lease(Lease{ID: 1, TTL: 1})); err != nil {
		t.Error(err)
	}
	for _, l := range []Lease{{ID: 1, TTL: 1}, {TTL: 1}, {ID: 2, TTL: -1}} {
		if b.Lease(l) == nil {
			t.Errorf("lease %v is taken", l)
		}
	}
}

// After Rebase no revision that a client of the earlier cluster can know is
// served, and everything that lived still does.
func TestRebase(t *testing.T) {
	s := sample(t)
	before := s.Revision()
	want, _ := s.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err := s.Rebase(1000, true); err != nil {
		t.Fatal(err)
	}
	if s.Revision() != before+1000 || s.CompactRevision() != before+1000 || len(s.Alarms()) != 0 || len(s.Members()) != 0 {
		t.Errorf("revision %d, compacted at %d, alarms %v, members %v", s.Revision(), s.CompactRevision(), s.Alarms(), s.Members())
	}
	got, err := s.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil || fmt.Sprint(got.Kvs) != fmt.Sprint(want.Kvs) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := s.Range(&pb.RangeRequest{Key: []byte("old"), Revision: before}); err == nil {
		t.Error("an earlier revision can be read")
	}
	mustApply(t, s, put("next", "1"))
	if s.Revision() != before+1001 {
		t.Errorf("the next revision is %d", s.Revision())
	}
	if r := rebuild(t, s); !bytes.Equal(snapshotBytes(t, r), snapshotBytes(t, rebuild(t, r))) {
		t.Error("it is not rebuilt alike")
	}
	for _, n := range []int64{-1, math.MaxInt64} {
		if err := s.Rebase(n, false); !errors.Is(err, ErrRevisionRange) {
			t.Errorf("raised by %d: %v", n, err)
		}
	}
	if err := s.Rebase(0, false); err != nil || s.Revision() != before+1001 || s.CompactRevision() != before+1000 {
		t.Errorf("raised by nothing: revision %d, compacted at %d, %v", s.Revision(), s.CompactRevision(), err)
	}
}
