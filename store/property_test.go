package store

import (
	"bytes"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

var (
	genKey   = rapid.SampledFrom([]string{"a", "a/1", "a/2", "b", "b/1", "c", "\xff"})
	genEnd   = rapid.SampledFrom([]string{"", "", "\x00", "a0", "b", "b0", "c"})
	genValue = rapid.SampledFrom([]string{"", "x", "y", "zz"})
	genLease = rapid.SampledFrom([]int64{0, 0, 0, 7, 8, 9})
)

func genRange(t *rapid.T, rev int64) *pb.RangeRequest {
	small := rapid.Int64Range(0, rev+1)
	rare := rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(0)), rapid.Just(int64(0)), small)
	return &pb.RangeRequest{
		Key: []byte(genKey.Draw(t, "key")), RangeEnd: []byte(genEnd.Draw(t, "end")),
		Limit:             rapid.Int64Range(0, 4).Draw(t, "limit"),
		Revision:          rapid.OneOf(rapid.Just(int64(0)), small).Draw(t, "revision"),
		SortOrder:         pb.RangeRequest_SortOrder(rapid.IntRange(0, 2).Draw(t, "order")),
		SortTarget:        pb.RangeRequest_KEY,
		KeysOnly:          rapid.Bool().Draw(t, "keysOnly"),
		CountOnly:         rapid.IntRange(0, 5).Draw(t, "countOnly") == 0,
		MinModRevision:    rare.Draw(t, "minMod"),
		MaxModRevision:    rare.Draw(t, "maxMod"),
		MinCreateRevision: rare.Draw(t, "minCreate"),
		MaxCreateRevision: rare.Draw(t, "maxCreate"),
	}
}

// genSortedRange sets a target too; without an order etcd sorts only what the
// limit left, which the model leaves out.
func genSortedRange(t *rapid.T, rev int64) *pb.RangeRequest {
	r := genRange(t, rev)
	if r.SortOrder != pb.RangeRequest_NONE {
		r.SortTarget = pb.RangeRequest_SortTarget(rapid.IntRange(0, 4).Draw(t, "target"))
	}
	return r
}

func genPut(t *rapid.T) *pb.PutRequest {
	p := &pb.PutRequest{
		Key: []byte(genKey.Draw(t, "key")), Value: []byte(genValue.Draw(t, "value")),
		Lease: genLease.Draw(t, "lease"), PrevKv: rapid.Bool().Draw(t, "prev"),
	}
	switch rapid.IntRange(0, 9).Draw(t, "ignore") {
	case 0:
		p.IgnoreValue, p.Value = true, nil
	case 1:
		p.IgnoreLease, p.Lease = true, 0
	}
	return p
}

func genDelete(t *rapid.T) *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: []byte(genKey.Draw(t, "key")), RangeEnd: []byte(genEnd.Draw(t, "end")), PrevKv: rapid.Bool().Draw(t, "prev")}
}

func genCompare(t *rapid.T, rev int64) *pb.Compare {
	c := &pb.Compare{
		Key: []byte(genKey.Draw(t, "key")), RangeEnd: []byte(genEnd.Draw(t, "end")),
		Result: pb.Compare_CompareResult(rapid.IntRange(0, 3).Draw(t, "result")),
		Target: pb.Compare_CompareTarget(rapid.IntRange(0, 4).Draw(t, "target")),
	}
	n := rapid.Int64Range(0, rev+1).Draw(t, "operand")
	switch c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: n % 3}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: n}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: n}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: []byte(genValue.Draw(t, "operandValue"))}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: genLease.Draw(t, "operandLease")}
	}
	return c
}

func genTxn(t *rapid.T, rev int64, depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for i := rapid.IntRange(0, 2).Draw(t, "compares"); i > 0; i-- {
		r.Compare = append(r.Compare, genCompare(t, rev))
	}
	ops := func() (out []*pb.RequestOp) {
		for i := rapid.IntRange(0, 3).Draw(t, "ops"); i > 0; i-- {
			op := &pb.RequestOp{}
			switch k := rapid.IntRange(0, 6).Draw(t, "op"); {
			case k < 2:
				op.Request = &pb.RequestOp_RequestRange{RequestRange: genSortedRange(t, rev)}
			case k < 4:
				op.Request = &pb.RequestOp_RequestPut{RequestPut: genPut(t)}
			case k < 6 || depth == 0:
				op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: genDelete(t)}
			default:
				op.Request = &pb.RequestOp_RequestTxn{RequestTxn: genTxn(t, rev, depth-1)}
			}
			out = append(out, op)
		}
		return out
	}
	r.Success, r.Failure = ops(), ops()
	return r
}

// modelWatch is a watcher and what it must still see.
type modelWatch struct {
	w    *Watcher
	o    WatchOptions
	next int64 // first revision that was not read yet
	past bool  // starts in the past, and has not been read
}

// rig runs requests against the store and the model.
type rig struct {
	s       *Store
	m       *model
	watches []*modelWatch
}

func (g *rig) apply(t *rapid.T, r *pb.InternalRaftRequest) {
	want, wantErr := g.m.apply(proto.Clone(r).(*pb.InternalRaftRequest))
	got := g.s.Apply(r)
	if got.Err != wantErr {
		t.Fatalf("%v: error %v, want %v", r, got.Err, wantErr)
	}
	if got.Revision != g.m.rev {
		t.Fatalf("%v: revision %d, want %d", r, got.Revision, g.m.rev)
	}
	if wantErr == nil && !proto.Equal(got.Response, want) {
		t.Fatalf("%v:\n got %v\nwant %v", r, got.Response, want)
	}
}

func (g *rig) read(t *rapid.T, r *pb.RangeRequest) {
	want, wantErr := g.m.rangeAt(r, g.m.rev)
	got, err := g.s.Range(r)
	if err != wantErr {
		t.Fatalf("%v: error %v, want %v", r, err, wantErr)
	}
	if err == nil && !proto.Equal(got, want) {
		t.Fatalf("%v:\n got %v\nwant %v", r, got, want)
	}
}

func (g *rig) watch(t *rapid.T) {
	o := WatchOptions{
		Key: []byte(genKey.Draw(t, "key")), RangeEnd: []byte(genEnd.Draw(t, "end")),
		StartRevision: rapid.Int64Range(0, g.m.rev+3).Draw(t, "start"),
		NoPut:         rapid.IntRange(0, 5).Draw(t, "noPut") == 0,
		NoDelete:      rapid.IntRange(0, 5).Draw(t, "noDelete") == 0,
		PrevKV:        rapid.Bool().Draw(t, "prevKV"),
	}
	w, err := g.s.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	mw := &modelWatch{w: w, o: o, next: o.StartRevision}
	if o.StartRevision == 0 {
		mw.next = g.m.rev + 1
	}
	mw.past = mw.next <= g.m.rev
	g.watches = append(g.watches, mw)
}

// next reads a watcher; it returns false when the watcher has ended.
func (g *rig) next(t *rapid.T, mw *modelWatch) bool {
	want := g.m.events(mw.o, mw.next, g.m.rev)
	lost := mw.past && mw.next < g.m.compactRev
	if len(want) > 0 && want[0].Kv.ModRevision < g.m.compactRev {
		lost = true
	}
	ready := false
	select {
	case <-mw.w.Ready():
		ready = true
	default:
	}
	if !ready && (len(want) > 0 || lost) {
		t.Fatalf("watch %+v has events and is not ready", mw.o)
	}
	b, err := mw.w.Next()
	var c *CompactedError
	if errors.As(err, &c) {
		if !lost || c.CompactRevision != g.m.compactRev {
			t.Fatalf("watch %+v: compacted at %d, model at %d, lost %v", mw.o, c.CompactRevision, g.m.compactRev, lost)
		}
		return false
	}
	if err != nil || lost {
		t.Fatalf("watch %+v from %d: error %v, events lost: %v", mw.o, mw.next, err, lost)
	}
	if b.Revision != g.m.rev {
		t.Fatalf("watch %+v is drained to %d, store is at %d", mw.o, b.Revision, g.m.rev)
	}
	if len(b.Events) != len(want) {
		t.Fatalf("watch %+v from %d:\n got %v\nwant %v", mw.o, mw.next, b.Events, want)
	}
	for i, ev := range b.Events {
		if !proto.Equal(ev, want[i]) {
			t.Fatalf("watch %+v from %d:\n got %v\nwant %v", mw.o, mw.next, ev, want[i])
		}
	}
	mw.next, mw.past = max(mw.next, g.m.rev+1), false
	return true
}

func snapshotBytes(t rapid.TB, s *Store) []byte {
	var b bytes.Buffer
	sn := s.Snapshot()
	defer sn.Close()
	if n, err := sn.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d bytes, says %d: %v", b.Len(), n, err)
	}
	return b.Bytes()
}

// The store does what the model does, for any history of puts, deletes,
// transactions, leases, compactions, snapshots and restores, read at any
// revision, and watched from any revision.
func TestStoreIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &rig{s: New(Options{}), m: newModel()}
		t.Repeat(map[string]func(*rapid.T){
			"put":    func(t *rapid.T) { g.apply(t, &pb.InternalRaftRequest{Put: genPut(t)}) },
			"delete": func(t *rapid.T) { g.apply(t, &pb.InternalRaftRequest{DeleteRange: genDelete(t)}) },
			"txn":    func(t *rapid.T) { g.apply(t, &pb.InternalRaftRequest{Txn: genTxn(t, g.m.rev, 1)}) },
			"compact": func(t *rapid.T) {
				rev := rapid.Int64Range(0, g.m.rev+1).Draw(t, "at")
				g.apply(t, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: rev}})
			},
			"grant": func(t *rapid.T) {
				r := &pb.LeaseGrantRequest{ID: rapid.Int64Range(7, 9).Draw(t, "id"), TTL: rapid.Int64Range(0, 60).Draw(t, "ttl")}
				g.apply(t, &pb.InternalRaftRequest{LeaseGrant: r})
			},
			"revoke": func(t *rapid.T) {
				r := &pb.LeaseRevokeRequest{ID: rapid.Int64Range(7, 9).Draw(t, "id")}
				g.apply(t, &pb.InternalRaftRequest{LeaseRevoke: r})
			},
			"range": func(t *rapid.T) { g.read(t, genSortedRange(t, g.m.rev)) },
			"readTxn": func(t *rapid.T) {
				r := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: genSortedRange(t, g.m.rev)}}}}
				want, wantErr := g.m.apply(&pb.InternalRaftRequest{Txn: r})
				got, err := g.s.Txn(r)
				if err != wantErr || err == nil && !proto.Equal(got, want) {
					t.Fatalf("%v:\n got %v, %v\nwant %v, %v", r, got, err, want, wantErr)
				}
			},
			"watch": g.watch,
			"next": func(t *rapid.T) {
				if len(g.watches) == 0 {
					t.Skip("no watch")
				}
				i := rapid.IntRange(0, len(g.watches)-1).Draw(t, "watch")
				if !g.next(t, g.watches[i]) {
					g.watches = append(g.watches[:i], g.watches[i+1:]...)
				}
			},
			// Restoring what it already has changes nothing that can be seen.
			"restore": func(t *rapid.T) {
				if err := g.s.Restore(bytes.NewReader(snapshotBytes(t, g.s))); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if g.s.Revision() != g.m.rev || g.s.CompactRevision() != g.m.compactRev {
					t.Fatalf("at %d compacted %d, want %d compacted %d", g.s.Revision(), g.s.CompactRevision(), g.m.rev, g.m.compactRev)
				}
			},
		})
		for _, mw := range g.watches {
			g.next(t, mw)
		}
		g.checkLeases(t)
		g.checkRestored(t)
	})
}

func (g *rig) checkLeases(t *rapid.T) {
	leases := g.s.Leases()
	if len(leases) != len(g.m.leases) {
		t.Fatalf("leases %v, want %v", leases, g.m.leases)
	}
	for _, l := range leases {
		if g.m.leases[l.ID] != l.TTL {
			t.Fatalf("leases %v, want %v", leases, g.m.leases)
		}
		var want [][]byte
		for _, kv := range g.m.inRange(g.m.at(g.m.rev), []byte{0}, []byte{0}) {
			if kv.Lease == l.ID {
				want = append(want, kv.Key)
			}
		}
		if got := g.s.LeaseKeys(l.ID); !bytes.Equal(bytes.Join(got, []byte(",")), bytes.Join(want, []byte(","))) {
			t.Fatalf("keys of lease %d: %q, want %q", l.ID, got, want)
		}
	}
}

// checkRestored checks that a store made from a snapshot is the same store:
// its snapshot, hash and size, and every revision that can be read.
func (g *rig) checkRestored(t *rapid.T) {
	snap := snapshotBytes(t, g.s)
	r := New(Options{})
	if err := r.Restore(bytes.NewReader(snap)); err != nil {
		t.Fatal(err)
	}
	if again := snapshotBytes(t, r); !bytes.Equal(snap, again) {
		t.Fatal("snapshot of the restored store differs")
	}
	if r.Size() != g.s.Size() {
		t.Fatalf("restored size %d, was %d", r.Size(), g.s.Size())
	}
	for rev := max(g.m.compactRev, 1); rev <= g.m.rev; rev++ {
		all := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: rev}
		want, _ := g.m.rangeAt(all, g.m.rev)
		for _, s := range []*Store{g.s, r} {
			if got, err := s.Range(all); err != nil || !proto.Equal(got, want) {
				t.Fatalf("revision %d: got %v, %v\nwant %v", rev, got, err, want)
			}
		}
		a, err1 := g.s.Hash(rev)
		b, err2 := r.Hash(rev)
		if err1 != nil || err2 != nil || a != b {
			t.Fatalf("hash at %d: %+v %v, restored %+v %v", rev, a, err1, b, err2)
		}
	}
	w, err := r.Watch(WatchOptions{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: max(g.m.compactRev, 1), PrevKV: true})
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Next()
	want := g.m.events(w.o, w.min, g.m.rev)
	if err != nil || len(b.Events) != len(want) {
		t.Fatalf("restored history has %d events, want %d: %v", len(b.Events), len(want), err)
	}
	for i := range want {
		if !proto.Equal(b.Events[i], want[i]) {
			t.Fatalf("restored history:\n got %v\nwant %v", b.Events[i], want[i])
		}
	}
}

// Two stores that apply the same requests are the same, byte for byte.
func TestApplyIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := New(Options{}), New(Options{})
		rev := int64(1)
		for i := rapid.IntRange(1, 40).Draw(t, "requests"); i > 0; i-- {
			var r *pb.InternalRaftRequest
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				r = &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: rapid.Int64Range(7, 9).Draw(t, "id"), TTL: 5}}
			case 1:
				r = &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: rapid.Int64Range(0, rev).Draw(t, "at")}}
			case 2:
				r = &pb.InternalRaftRequest{Txn: genTxn(t, rev, 2)}
			case 3:
				r = &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: pb.AlarmRequest_AlarmAction(rapid.IntRange(1, 2).Draw(t, "action")), MemberID: rapid.Uint64Range(1, 3).Draw(t, "member"), Alarm: pb.AlarmType_NOSPACE}}
			default:
				r = &pb.InternalRaftRequest{Put: genPut(t)}
			}
			ra, rb := a.Apply(proto.Clone(r).(*pb.InternalRaftRequest)), b.Apply(r)
			// A reader between two requests must not make a difference.
			if rapid.Bool().Draw(t, "read") {
				b.Revision()
			}
			if ra.Err != rb.Err || ra.Revision != rb.Revision || ra.Response != nil && !proto.Equal(ra.Response, rb.Response) {
				t.Fatalf("%v: %v and %v", r, ra, rb)
			}
			rev = ra.Revision
		}
		if !bytes.Equal(snapshotBytes(t, a), snapshotBytes(t, b)) {
			t.Fatal("snapshots differ")
		}
	})
}

func put(key, value string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

func mustApply(t testing.TB, s *Store, r *pb.InternalRaftRequest) Result {
	t.Helper()
	res := s.Apply(r)
	if res.Err != nil {
		t.Fatalf("apply %v: %v", r, res.Err)
	}
	return res
}

func eventString(ev *mvccpb.Event) string { return ev.Type.String() + " " + string(ev.Kv.Key) }
