package store

import (
	"context"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func alarmRequest(a pb.AlarmRequest_AlarmAction, kind pb.AlarmType) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: a, MemberID: 1, Alarm: kind}}
}

func TestRevisionsAsInEtcd(t *testing.T) {
	s := New(Options{})
	if s.Revision() != 1 || s.CompactRevision() != -1 {
		t.Fatalf("a new store is at %d, compacted at %d", s.Revision(), s.CompactRevision())
	}
	del := &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("none")}}
	if r := mustApply(t, s, del); r.Revision != 1 || r.Response.(*pb.DeleteRangeResponse).Header.Revision != 1 {
		t.Errorf("deleting nothing: %+v", r)
	}
	read := &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k")}}}}}}
	if r := mustApply(t, s, read); r.Revision != 1 {
		t.Errorf("a transaction of reads: %+v", r)
	}
	if r := mustApply(t, s, put("k", "v")); r.Revision != 2 || r.Response.(*pb.PutResponse).Header.Revision != 2 {
		t.Errorf("a put: %+v", r)
	}
	// A key that comes back starts over.
	mustApply(t, s, put("k", "v"))
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("k")}})
	mustApply(t, s, put("k", "again"))
	resp, _ := s.Range(&pb.RangeRequest{Key: []byte("k")})
	if kv := resp.Kvs[0]; kv.Version != 1 || kv.CreateRevision != 5 || kv.ModRevision != 5 {
		t.Errorf("the key came back as %v", kv)
	}
}

func TestRefusals(t *testing.T) {
	s := New(Options{})
	mustApply(t, s, put("k", "1"))
	mustApply(t, s, put("k", "2"))
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 3}})
	grant := func(id, ttl int64) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id, TTL: ttl}}
	}
	mustApply(t, s, grant(5, 60))
	for _, c := range []struct {
		name string
		r    *pb.InternalRaftRequest
		want error
	}{
		{"empty key", put("", "v"), rpctypes.ErrGRPCEmptyKey},
		{"unknown lease", &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("k"), Lease: 1}}, rpctypes.ErrGRPCLeaseNotFound},
		{"ignore value of none", &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("x"), IgnoreValue: true}}, rpctypes.ErrGRPCKeyNotFound},
		{"compact again", &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 3}}, rpctypes.ErrGRPCCompacted},
		{"compact the future", &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 9}}, rpctypes.ErrGRPCFutureRev},
		{"lease exists", grant(5, 60), rpctypes.ErrGRPCLeaseExist},
		{"lease without ID", grant(0, 60), rpctypes.ErrGRPCLeaseNotFound},
		{"lease for ever", grant(6, MaxLeaseTTL+1), rpctypes.ErrGRPCLeaseTTLTooLarge},
		{"revoke no lease", &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: 1}}, rpctypes.ErrGRPCLeaseNotFound},
		{"checkpoint no lease", &pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{Checkpoints: []*pb.LeaseCheckpoint{{ID: 1}}}}, rpctypes.ErrGRPCLeaseNotFound},
		{"log in", &pb.InternalRaftRequest{Authenticate: &pb.InternalAuthenticateRequest{}}, rpctypes.ErrGRPCAuthNotEnabled},
		{"read compacted in a txn", &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k"), Value: []byte("not written")}}},
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k"), Revision: 2}}}}}}, rpctypes.ErrGRPCCompacted},
		{"empty operation", &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{{}}}}, rpctypes.ErrGRPCKeyNotFound},
	} {
		if r := s.Apply(c.r); r.Err != c.want || r.Response != nil || r.Revision != 3 {
			t.Errorf("%s: %+v, want %v", c.name, r, c.want)
		}
	}
	if r := s.Apply(&pb.InternalRaftRequest{}); r.Err == nil || !strings.Contains(r.Err.Error(), "not supported") {
		t.Errorf("a request of no kind: %+v", r)
	}
	for rev, want := range map[int64]error{2: rpctypes.ErrGRPCCompacted, 3: nil, 4: rpctypes.ErrGRPCFutureRev} {
		if _, err := s.Range(&pb.RangeRequest{Key: []byte("k"), Revision: rev}); err != want {
			t.Errorf("range at %d: %v, want %v", rev, err, want)
		}
		if _, err := s.Hash(rev); err != want {
			t.Errorf("hash at %d: %v, want %v", rev, err, want)
		}
	}
	if _, err := s.Txn(&pb.TxnRequest{Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k")}}}}}); err != ErrNotReadOnly {
		t.Errorf("a local transaction that writes: %v", err)
	}
}

func TestAlarms(t *testing.T) {
	s := New(Options{})
	mustApply(t, s, put("k", "v"))
	mustApply(t, s, alarmRequest(pb.AlarmRequest_ACTIVATE, pb.AlarmType_NOSPACE))
	putTxn := &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k")}}}}}}
	for _, r := range []*pb.InternalRaftRequest{put("k", "w"), putTxn, {LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: 9}}} {
		if res := s.Apply(r); res.Err != rpctypes.ErrGRPCNoSpace {
			t.Errorf("without space %v: %v", r, res.Err)
		}
	}
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("k")}})
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	mustApply(t, s, alarmRequest(pb.AlarmRequest_DEACTIVATE, pb.AlarmType_NOSPACE))
	mustApply(t, s, put("k", "w"))

	mustApply(t, s, alarmRequest(pb.AlarmRequest_ACTIVATE, pb.AlarmType_CORRUPT))
	if _, err := s.Range(&pb.RangeRequest{Key: []byte("k")}); err != rpctypes.ErrGRPCCorrupt {
		t.Errorf("reading a corrupt store: %v", err)
	}
	if res := s.Apply(put("k", "w")); res.Err != rpctypes.ErrGRPCCorrupt {
		t.Errorf("writing a corrupt store: %v", res.Err)
	}
	if a := s.Alarms(); len(a) != 1 || a[0].Alarm != pb.AlarmType_CORRUPT || a[0].MemberID != 1 {
		t.Errorf("alarms %v", a)
	}
}

func TestQuota(t *testing.T) {
	s := New(Options{})
	p := WithQuota(NewLocal(s), s, 4000, 8)
	ctx := context.Background()
	var refused error
	for i := 0; i < 100 && refused == nil; i++ {
		res, err := p.Propose(ctx, put("k", strings.Repeat("v", 200)))
		if err != nil {
			t.Fatal(err)
		}
		refused = res.Err
	}
	if refused != rpctypes.ErrGRPCNoSpace || s.Size() > 4000 {
		t.Fatalf("%v at %d bytes", refused, s.Size())
	}
	if a := s.Alarms(); len(a) != 1 || a[0].Alarm != pb.AlarmType_NOSPACE || a[0].MemberID != 8 {
		t.Errorf("alarms %v", a)
	}
	compact := &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}}
	disarm := &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: 8, Alarm: pb.AlarmType_NOSPACE}}
	for _, r := range []*pb.InternalRaftRequest{compact, disarm, put("k", "fits again")} {
		if res, err := p.Propose(ctx, r); err != nil || res.Err != nil {
			t.Errorf("%v: %v, %v", r, res.Err, err)
		}
	}
}

func TestSizeFollowsWhatIsKept(t *testing.T) {
	s := New(Options{})
	empty := s.Size()
	for range 10 {
		mustApply(t, s, put("key", "value"))
	}
	full := s.Size()
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	if got := s.Size() - empty; got*10 != full-empty {
		t.Errorf("one of ten versions takes %d of %d bytes", got, full-empty)
	}
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("key")}})
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: s.Revision()}})
	if s.Size() != empty {
		t.Errorf("nothing is kept, and takes %d bytes", s.Size()-empty)
	}
}

// The leader's timers learn of every change of the leases, in order.
func TestLeaseChanges(t *testing.T) {
	var got []LeaseChange
	s := New(Options{OnLease: func(c LeaseChange) { got = append(got, c) }})
	v := s.LeaseVersion()
	mustApply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 5, TTL: 1}})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{Checkpoints: []*pb.LeaseCheckpoint{{ID: 5, Remaining_TTL: 1}}}})
	mustApply(t, s, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("b"), Lease: 5}})
	mustApply(t, s, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("a"), Lease: 5}})
	rev := s.Revision()
	w := mustWatch(t, s, WatchOptions{Key: []byte{0}, RangeEnd: []byte{0}})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: 5}})
	want := []LeaseChange{
		{Lease{5, MinLeaseTTL, 0}, LeaseGranted},
		{Lease{5, MinLeaseTTL, 1}, LeaseCheckpointed},
		{Lease{5, MinLeaseTTL, 1}, LeaseRevoked},
	}
	if len(got) != len(want) {
		t.Fatalf("changes %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("change %d: %v, want %v", i, got[i], want[i])
		}
	}
	if s.LeaseVersion() != v+3 {
		t.Errorf("version %d, was %d", s.LeaseVersion(), v)
	}
	// One revision for all keys of the lease, in order.
	b := mustNext(t, w)
	if len(b.Events) != 2 || eventString(b.Events[0]) != "DELETE a" || eventString(b.Events[1]) != "DELETE b" || b.Revision != rev+1 {
		t.Errorf("events of the revocation: %+v", b)
	}
}
