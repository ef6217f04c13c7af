package etcdapi

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A member whose store is far behind the log takes no more requests; reads of
// what it has go on.
func TestTooManyRequests(t *testing.T) {
	g := newRig(t, nil)
	c, ctx := g.client, testContext(t)
	g.cluster.behind.Store(MaxApplyLag)
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	g.cluster.behind.Store(MaxApplyLag + 1)
	for name, call := range map[string]func() error{
		"put":    func() error { _, err := c.Put(ctx, "k", "v"); return err },
		"delete": func() error { _, err := c.Delete(ctx, "k"); return err },
		"txn":    func() error { _, err := c.Txn(ctx).Then(clientv3.OpPut("k", "v")).Commit(); return err },
		"lease":  func() error { _, err := c.Grant(ctx, 60); return err },
	} {
		if err := call(); !errors.Is(err, rpctypes.ErrTooManyRequests) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Get(ctx, "k"); err != nil {
		t.Errorf("get: %v", err)
	}
	g.cluster.behind.Store(0)
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Errorf("when it has caught up: %v", err)
	}
}

// An answer that no message can carry is refused in words, the connection
// lives on, and RangeStream and fragments bring it in parts.
func TestLargeAnswers(t *testing.T) {
	g := newRig(t, func(c *Config) { c.MaxResponseBytes = 1 << 20 })
	c, ctx := g.client, testContext(t)
	watch := g.raw(t, ctx)
	whole := pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), WatchId: 1, PrevKv: true}
	parts := pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), WatchId: 2, PrevKv: true, Fragment: true, StartRevision: 2002}
	g.fill(t, 2000)
	watch.create(&whole)
	watch.create(&parts)

	refused := func(err error, want string) {
		t.Helper()
		if s := status.Convert(err); s.Code() != codes.ResourceExhausted || !strings.Contains(s.Message(), want) {
			t.Errorf("%v, want one with %q", err, want)
		}
	}
	kv := pb.NewKVClient(g.conn)
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	_, err := kv.Range(ctx, all)
	refused(err, "RangeStream")
	inTxn := &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: all}}}}}}}}
	_, err = kv.Txn(ctx, inTxn)
	refused(err, "RangeStream")
	stream, err := kv.RangeStream(ctx, all)
	n := 0
	for ; err == nil; n++ {
		var m *pb.RangeStreamResponse
		if m, err = stream.Recv(); err == nil && m.RangeResponse.Header != nil && m.RangeResponse.Count != 2000 {
			t.Errorf("count %d", m.RangeResponse.Count)
		}
	}
	if n < 2 {
		t.Errorf("%d messages: %v", n, err)
	}
	if r, err := c.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithLimit(10)); err != nil || len(r.Kvs) != 10 {
		t.Errorf("with a limit: %v, %v", r, err)
	}
	_, err = kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), PrevKv: true})
	refused(err, "was applied")

	events, canceled := 0, ""
	for events < 2000 || canceled == "" {
		m := watch.recv()
		if m.WatchId == 1 && m.Canceled {
			canceled = m.CancelReason
		} else if m.WatchId == 2 {
			events += len(m.Events)
		}
	}
	if events != 2000 || !strings.Contains(canceled, "fragments") {
		t.Errorf("%d events; the watch that takes no fragments: %s", events, fmt.Sprint(canceled))
	}
}
