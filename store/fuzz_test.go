package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// encodeLog is requests as FuzzRequests reads them: each after its length.
func encodeLog(t testing.TB, rs ...*pb.InternalRaftRequest) []byte {
	var out []byte
	for _, r := range rs {
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	return out
}

func decodeLog(b []byte) (rs []*pb.InternalRaftRequest) {
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return rs
		}
		r := &pb.InternalRaftRequest{}
		if proto.Unmarshal(b[k:k+int(n)], r) != nil {
			return rs
		}
		rs = append(rs, r)
		b = b[k+int(n):]
	}
	return rs
}

// FuzzRequests applies any requests that decode, sound or not, to two stores,
// one of which is made anew from its snapshot now and then. Nothing panics,
// and the two stay equal.
func FuzzRequests(f *testing.F) {
	lease := &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 7, TTL: 60}}
	leased := &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("k"), Lease: 7, PrevKv: true}}
	header := &pb.RequestHeader{Username: "alice", AuthRevision: 16}
	f.Add(encodeLog(f, put("a", "1"), put("a", "2"), remove("a", "b", true), put("a", "3"), &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 4}}, read("a", "\x00")))
	f.Add(encodeLog(f, lease, leased, &pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{Checkpoints: []*pb.LeaseCheckpoint{{ID: 7, Remaining_TTL: 3}, {ID: 8}}}}, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: 7}}))
	f.Add(encodeLog(f, put("a", "1"), txnOf("a", put("b", "2"), txnOf("b", read("a", "c"), remove("a", "", true)))))
	f.Add(encodeLog(f, userAdd("root"), roleTo("root", "root"), userAdd("alice"), roleAdd("r"), grant("r", authpb.Permission_READWRITE, "a", "\x00"), roleTo("alice", "r"),
		&pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}},
		&pb.InternalRaftRequest{Header: header, Put: &pb.PutRequest{Key: []byte("a")}},
		&pb.InternalRaftRequest{Header: header, AuthUserGet: &pb.AuthUserGetRequest{Name: "alice"}},
		&pb.InternalRaftRequest{Authenticate: &pb.InternalAuthenticateRequest{Name: "alice", SimpleToken: "x"}},
		&pb.InternalRaftRequest{AuthRoleDelete: &pb.AuthRoleDeleteRequest{Role: "r"}}))
	f.Add(encodeLog(f, alarmRequest(pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE), put("a", "1"), alarmRequest(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE), &pb.InternalRaftRequest{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		one, two := New(Options{}), New(Options{})
		for i, r := range decodeLog(b) {
			before := one.Revision()
			got, want := two.Apply(proto.Clone(r).(*pb.InternalRaftRequest)), one.Apply(r)
			if got.Err != want.Err && got.Err.Error() != want.Err.Error() || got.Revision != want.Revision || want.Response != nil && !proto.Equal(got.Response, want.Response) {
				t.Fatalf("request %d, %v: %+v and %+v", i, r, got, want)
			}
			if want.Err != nil && one.Revision() != before || one.Revision() < before || one.Revision() > before+1 || one.Size() < 0 {
				t.Fatalf("request %d, %v: from revision %d to %d, size %d, %v", i, r, before, one.Revision(), one.Size(), want.Err)
			}
			if i%3 == 2 {
				if err := two.Restore(bytes.NewReader(snapshotBytes(t, two))); err != nil {
					t.Fatalf("after request %d, %v: %v", i, r, err)
				}
			}
		}
		if !bytes.Equal(snapshotBytes(t, one), snapshotBytes(t, two)) {
			t.Fatal("the stores differ")
		}
		if a, err := one.Hash(0); err != nil {
			t.Fatal(err)
		} else if b, err := two.Hash(0); err != nil || a != b {
			t.Fatalf("hashes %+v and %+v, %v", a, b, err)
		}
	})
}

// A transaction that reads a compacted revision is refused or not on every
// peer alike, whether the peer has applied the compaction or was restored from
// a snapshot before it, or after.
func TestReplicasAgreeAroundCompactions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := New(Options{}), New(Options{})
		for i := rapid.IntRange(1, 30).Draw(t, "requests"); i > 0; i-- {
			r := &pb.InternalRaftRequest{}
			switch rev := one.Revision(); rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				r.Compaction = &pb.CompactionRequest{Revision: rapid.Int64Range(0, rev).Draw(t, "at"), Physical: rapid.Bool().Draw(t, "physical")}
			case 1:
				r.Put = genPut(t)
			default:
				r.Txn = genTxn(t, rev, 1)
			}
			if rapid.IntRange(0, 3).Draw(t, "restored") == 0 {
				if err := two.Restore(bytes.NewReader(snapshotBytes(t, two))); err != nil {
					t.Fatal(err)
				}
			}
			a, b := one.Apply(proto.Clone(r).(*pb.InternalRaftRequest)), two.Apply(r)
			if a.Err != b.Err || a.Revision != b.Revision || a.Response != nil && !proto.Equal(a.Response, b.Response) {
				t.Fatalf("%v: %+v and %+v", r, a, b)
			}
		}
		a, _ := one.Hash(0)
		if b, err := two.Hash(0); err != nil || a != b || !bytes.Equal(snapshotBytes(t, one), snapshotBytes(t, two)) {
			t.Fatalf("hashes %+v and %+v, %v", a, b, err)
		}
	})
}

// watchSchedule is any order of changes, compactions, restores to states that
// are older, newer or the same, and of watches that are made, read and closed.
func watchSchedule(t *rapid.T) {
	g := &rig{s: New(Options{}), m: newModel()}
	type saved struct {
		snapshot []byte
		model    *model
	}
	var old *saved
	apply := func(r *pb.InternalRaftRequest) { g.apply(t, r) }
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 11).Draw(t, "step") {
		case 0, 1, 2:
			apply(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(genKey.Draw(t, "key")), Value: []byte(genValue.Draw(t, "value"))}})
		case 3:
			apply(&pb.InternalRaftRequest{DeleteRange: genDelete(t)})
		case 4:
			apply(&pb.InternalRaftRequest{Txn: genTxn(t, g.m.rev, 1)})
		case 5:
			apply(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: rapid.Int64Range(0, g.m.rev).Draw(t, "compact")}})
		case 6, 7:
			g.watch(t)
		case 8, 9:
			if n := len(g.watches); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(t, "read")
				if !g.next(t, g.watches[i]) {
					g.watches = slices.Delete(g.watches, i, i+1)
				}
			}
		case 10:
			if n := len(g.watches); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(t, "close")
				g.watches[i].w.Close()
				if _, err := g.watches[i].w.Next(); err != ErrWatcherClosed {
					t.Fatalf("a closed watcher: %v", err)
				}
				g.watches = slices.Delete(g.watches, i, i+1)
			}
		case 11:
			now := &saved{snapshotBytes(t, g.s), g.m.clone()}
			if old == nil || rapid.Bool().Draw(t, "save") {
				old = now
				continue
			}
			if err := g.s.Restore(bytes.NewReader(old.snapshot)); err != nil {
				t.Fatal(err)
			}
			if g.m.rev > old.model.rev {
				for _, mw := range g.watches {
					if _, err := mw.w.Next(); !errors.Is(err, ErrRevisionWentBack) {
						t.Fatalf("watch %+v over a restore from %d to %d: %v", mw.o, g.m.rev, old.model.rev, err)
					}
				}
				g.watches = nil
			}
			g.m = old.model.clone()
			old = now
		}
		if n := g.s.Watchers(); n != len(g.watches) {
			t.Fatalf("%d watchers are open, want %d", n, len(g.watches))
		}
	}
	for _, mw := range g.watches {
		g.next(t, mw)
	}
}

func TestWatchSchedules(t *testing.T) { rapid.Check(t, watchSchedule) }

// FuzzWatches looks for schedules that the draws of TestWatchSchedules miss.
func FuzzWatches(f *testing.F) {
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0}, 40))
	f.Fuzz(rapid.MakeFuzz(watchSchedule))
}
