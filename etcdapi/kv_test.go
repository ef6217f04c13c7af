package etcdapi

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkubernetes "go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/tripod-cluster/tripod/store"
)

func TestClientPutGetDeleteTxnCompact(t *testing.T) {
	g := newRig(t, nil)
	c, ctx := g.client, testContext(t)

	put, err := c.Put(ctx, "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	if h := put.Header; h.ClusterId != 77 || h.MemberId != 8 || h.RaftTerm != 3 || h.Revision != 2 {
		t.Errorf("header %v", h)
	}
	c.Put(ctx, "b", "2")
	if r, err := c.Put(ctx, "a", "3", clientv3.WithPrevKV()); err != nil || string(r.PrevKv.Value) != "1" {
		t.Errorf("put with prev_kv: %v, %v", r, err)
	}
	get, err := c.Get(ctx, "a", clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil || get.Count != 1 || string(get.Kvs[0].Value) != "3" || get.Kvs[0].Version != 2 {
		t.Errorf("get: %v, %v", get, err)
	}
	if old, err := c.Get(ctx, "a", clientv3.WithRev(2)); err != nil || string(old.Kvs[0].Value) != "1" {
		t.Errorf("get at revision 2: %v, %v", old, err)
	}
	if all, err := c.Get(ctx, "", clientv3.WithFromKey(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithLimit(1)); err != nil || len(all.Kvs) != 1 || !all.More || string(all.Kvs[0].Key) != "a" {
		t.Errorf("sorted get: %v, %v", all, err)
	}
	txn, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Value("a"), "=", "3"), clientv3.Compare(clientv3.CreateRevision("c"), "=", 0)).
		Then(clientv3.OpPut("c", "x"), clientv3.OpGet("c"), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("b")}, nil)).Else(clientv3.OpGet("a")).Commit()
	if err != nil || !txn.Succeeded || len(txn.Responses) != 3 || txn.Header.Revision != 5 {
		t.Fatalf("txn: %v, %v", txn, err)
	}
	if kvs := txn.Responses[1].GetResponseRange().Kvs; len(kvs) != 1 || kvs[0].ModRevision != 5 {
		t.Errorf("a read after a write in the transaction: %v", kvs)
	}
	if read, err := c.Txn(ctx).Then(clientv3.OpGet("c")).Commit(); err != nil || read.Header.Revision != 5 {
		t.Errorf("read-only txn: %v, %v", read, err)
	}
	if d, err := c.Delete(ctx, "a", clientv3.WithFromKey(), clientv3.WithPrevKV()); err != nil || d.Deleted != 2 || len(d.PrevKvs) != 2 {
		t.Errorf("delete: %v, %v", d, err)
	}
	if r, err := c.Compact(ctx, 6, clientv3.WithCompactPhysical()); err != nil || r.Header.Revision != 6 {
		t.Errorf("compact: %v, %v", r, err)
	}
	if _, err := c.Get(ctx, "a", clientv3.WithRev(5)); err != rpctypes.ErrCompacted {
		t.Errorf("get of a compacted revision: %v", err)
	}
	if _, err := c.Get(ctx, "a", clientv3.WithRev(99)); err != rpctypes.ErrFutureRev {
		t.Errorf("get of a future revision: %v", err)
	}
}

// What etcd refuses is refused with the same code and words.
func TestRefusalsAreEtcds(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	kv, lease := pb.NewKVClient(g.conn), pb.NewLeaseClient(g.conn)
	put := func(k string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(k)}}}
	}
	del := func(k, end string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(k), RangeEnd: []byte(end)}}}
	}
	nested := func(then, otherwise []*pb.RequestOp) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: then, Failure: otherwise}}}
	}
	txn := func(ops ...*pb.RequestOp) func() error {
		return func() error { _, err := kv.Txn(ctx, &pb.TxnRequest{Success: ops}); return err }
	}
	many := func(n int) (ops []*pb.RequestOp) {
		for i := range n {
			ops = append(ops, put(fmt.Sprint(i)))
		}
		return ops
	}
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"empty key":     {func() error { _, err := kv.Put(ctx, &pb.PutRequest{}); return err }, rpctypes.ErrGRPCEmptyKey},
		"range no key":  {func() error { _, err := kv.Range(ctx, &pb.RangeRequest{}); return err }, rpctypes.ErrGRPCEmptyKey},
		"delete no key": {func() error { _, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{}); return err }, rpctypes.ErrGRPCEmptyKey},
		"bad sort":      {func() error { _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k"), SortOrder: 9}); return err }, rpctypes.ErrGRPCInvalidSortOption},
		"bad target":    {func() error { _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k"), SortTarget: 9}); return err }, rpctypes.ErrGRPCInvalidSortOption},
		"value ignored": {func() error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Value: []byte("v"), IgnoreValue: true})
			return err
		}, rpctypes.ErrGRPCValueProvided},
		"lease ignored": {func() error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Lease: 1, IgnoreLease: true})
			return err
		}, rpctypes.ErrGRPCLeaseProvided},
		"no such key": {func() error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("absent"), IgnoreLease: true})
			return err
		}, rpctypes.ErrGRPCKeyNotFound},
		"no such lease": {func() error { _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Lease: 1}); return err }, rpctypes.ErrGRPCLeaseNotFound},
		"too large": {func() error {
			_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Value: make([]byte, DefaultMaxRequestBytes)})
			return err
		}, rpctypes.ErrGRPCRequestTooLarge},
		"compact ahead": {func() error { _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: 99}); return err }, rpctypes.ErrGRPCFutureRev},
		"lease for ever": {func() error {
			_, err := lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: store.MaxLeaseTTL + 1})
			return err
		}, rpctypes.ErrGRPCLeaseTTLTooLarge},
		"revoke no lease": {func() error { _, err := lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 5}); return err }, rpctypes.ErrGRPCLeaseNotFound},
		"log in": {func() error {
			_, err := pb.NewAuthClient(g.conn).Authenticate(ctx, &pb.AuthenticateRequest{})
			return err
		}, rpctypes.ErrGRPCAuthNotEnabled},

		"129 operations":      {txn(many(129)...), rpctypes.ErrGRPCTooManyOps},
		"too many nested":     {txn(append(many(100), nested(many(29), nil))...), rpctypes.ErrGRPCTooManyOps},
		"empty operation":     {txn(&pb.RequestOp{}), rpctypes.ErrGRPCKeyNotFound},
		"put twice":           {txn(put("k"), put("k")), rpctypes.ErrGRPCDuplicateKey},
		"put in deleted":      {txn(del("a", "z"), put("k")), rpctypes.ErrGRPCDuplicateKey},
		"put in deleted tail": {txn(del("a", "\x00"), put("k")), rpctypes.ErrGRPCDuplicateKey},
		"nested put twice":    {txn(put("k"), nested(nil, []*pb.RequestOp{put("k")})), rpctypes.ErrGRPCDuplicateKey},
		"nested delete":       {txn(put("k"), nested([]*pb.RequestOp{del("k", "")}, nil)), rpctypes.ErrGRPCDuplicateKey},
		"deleted over nested": {txn(del("a", "c"), del("b", "z"), nested([]*pb.RequestOp{put("k")}, nil)), rpctypes.ErrGRPCDuplicateKey},

		"128 operations":       {txn(many(128)...), nil},
		"put beside deleted":   {txn(del("a", "k"), del("k\x00", "z"), put("k")), nil},
		"put in both branches": {txn(nested([]*pb.RequestOp{put("k")}, []*pb.RequestOp{put("k")})), nil},
		"empty delete range":   {txn(del("z", "a"), put("k")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.do()
			if got, want := rpctypes.Error(err), rpctypes.Error(c.want); got != want {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A client must not take a write whose outcome is unknown for one that failed,
// nor repeat it by itself.
func TestOutcomesOfTheProposer(t *testing.T) {
	g := newRig(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond })
	ctx := testContext(t)
	for _, c := range []struct {
		err  error
		want error
	}{
		{fmt.Errorf("propose: %w", store.ErrUnknownOutcome), rpctypes.ErrGRPCTimeoutDueToLeaderFail},
		{rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNoLeader},
		{rpctypes.ErrNoLeader, rpctypes.ErrGRPCNoLeader},
		{fmt.Errorf("wrapped: %w", rpctypes.ErrGRPCLeaderChanged), rpctypes.ErrGRPCLeaderChanged},
	} {
		g.flaky.err.Store(&c.err)
		_, err := pb.NewKVClient(g.conn).Put(ctx, &pb.PutRequest{Key: []byte("k")})
		if rpctypes.Error(err) != rpctypes.Error(c.want) {
			t.Errorf("%v became %v, want %v", c.err, err, c.want)
		}
	}
	g.flaky.err.Store(nil)
	g.flaky.Proposer = hung{}
	if _, err := g.client.Put(ctx, "k", "v"); err != rpctypes.ErrTimeout {
		t.Errorf("a proposal that hangs: %v", err)
	}
	// The client library would repeat this read.
	if _, err := pb.NewKVClient(g.conn).Range(ctx, &pb.RangeRequest{Key: []byte("k")}); rpctypes.Error(err) != rpctypes.ErrTimeout {
		t.Errorf("a read index that hangs: %v", err)
	}
	if _, err := g.client.Get(ctx, "k", clientv3.WithSerializable()); err != nil {
		t.Errorf("a serializable read needs nobody: %v", err)
	}
}

// hung never answers.
type hung struct{}

func (hung) Propose(ctx context.Context, _ *pb.InternalRaftRequest) (store.Result, error) {
	<-ctx.Done()
	return store.Result{}, ctx.Err()
}

func (hung) ReadIndex(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// The stream gives what Range gives, in messages of bounded size.
func TestRangeStream(t *testing.T) {
	g := newRig(t, nil)
	g.fill(t, 3000)
	ctx := testContext(t)
	for _, r := range []*pb.RangeRequest{
		{Key: []byte{0}, RangeEnd: []byte{0}},
		{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 2500},
		{Key: []byte("k"), RangeEnd: []byte("l"), CountOnly: true},
		{Key: []byte("none")},
	} {
		want, err := pb.NewKVClient(g.conn).Range(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := pb.NewKVClient(g.conn).RangeStream(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		var kvs []*mvccpb.KeyValue
		var last *pb.RangeResponse
		messages := 0
		for {
			m, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			last = m.RangeResponse
			kvs = append(kvs, last.Kvs...)
			messages++
		}
		if len(kvs) != len(want.Kvs) || last.Count != want.Count || last.More != want.More || last.Header.Revision != want.Header.Revision {
			t.Errorf("%v: stream gave %d keys, count %d, more %v; want %d, %d, %v", r, len(kvs), last.Count, last.More, len(want.Kvs), want.Count, want.More)
		}
		if len(kvs) > 2000 && messages < 2 {
			t.Errorf("%d bytes came in one message", len(kvs)*1000)
		}
		for i := range kvs {
			if string(kvs[i].Key) != string(want.Kvs[i].Key) {
				t.Fatalf("key %d is %s, want %s", i, kvs[i].Key, want.Kvs[i].Key)
			}
		}
	}
	stream, err := pb.NewKVClient(g.conn).RangeStream(ctx, &pb.RangeRequest{Key: []byte("k"), SortOrder: pb.RangeRequest_DESCEND})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || !strings.Contains(err.Error(), "custom sort orders") {
		t.Errorf("a sorted stream: %v", err)
	}
}

// The client that Kubernetes uses.
func TestKubernetesClient(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	k := etcdkubernetes.Client{Client: g.client}
	k.Kubernetes = &k
	create, err := k.OptimisticPut(ctx, "/registry/pods/a", []byte("1"), 0, etcdkubernetes.PutOptions{})
	if err != nil || !create.Succeeded {
		t.Fatalf("create: %+v, %v", create, err)
	}
	again, err := k.OptimisticPut(ctx, "/registry/pods/a", []byte("2"), 0, etcdkubernetes.PutOptions{GetOnFailure: true})
	if err != nil || again.Succeeded || string(again.KV.Value) != "1" {
		t.Errorf("create again: %+v, %v", again, err)
	}
	update, err := k.OptimisticPut(ctx, "/registry/pods/a", []byte("2"), create.Revision, etcdkubernetes.PutOptions{})
	if err != nil || !update.Succeeded {
		t.Errorf("update: %+v, %v", update, err)
	}
	list, err := k.List(ctx, "/registry/pods/", etcdkubernetes.ListOptions{Limit: 10})
	if err != nil || len(list.Kvs) != 1 || list.Revision != update.Revision {
		t.Errorf("list: %+v, %v", list, err)
	}
	if n, err := k.Count(ctx, "/registry/", etcdkubernetes.CountOptions{}); err != nil || n != 1 {
		t.Errorf("count: %d, %v", n, err)
	}
	if stale, err := k.OptimisticDelete(ctx, "/registry/pods/a", create.Revision, etcdkubernetes.DeleteOptions{GetOnFailure: true}); err != nil || stale.Succeeded || stale.KV == nil {
		t.Errorf("stale delete: %+v, %v", stale, err)
	}
	if del, err := k.OptimisticDelete(ctx, "/registry/pods/a", update.Revision, etcdkubernetes.DeleteOptions{}); err != nil || !del.Succeeded {
		t.Errorf("delete: %+v, %v", del, err)
	}
	if got, err := k.Get(ctx, "/registry/pods/a", etcdkubernetes.GetOptions{}); err != nil || got.KV != nil {
		t.Errorf("get: %+v, %v", got, err)
	}
}
