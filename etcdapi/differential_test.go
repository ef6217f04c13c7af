package etcdapi

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// startEtcd runs a real etcd of one member in this process, and returns a
// connection to it.
func startEtcd(t *testing.T) *grpc.ClientConn {
	t.Helper()
	dir := t.TempDir()
	sock := func(name string) url.URL { return url.URL{Scheme: "unix", Path: filepath.Join(dir, name)} }
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	cfg.LogLevel = "fatal"
	cfg.UnsafeNoFsync = true
	cfg.BcryptCost = uint(bcrypt.MinCost)
	client, peer := sock("client"), sock("peer")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(patience):
		t.Fatal("etcd did not start")
	}
	conn, err := grpc.NewClient("unix://"+client.Path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// scrub removes from a response what names the server, and nothing else.
func scrub(m proto.Message) {
	walk(m.ProtoReflect(), func(h *pb.ResponseHeader) { h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0 })
}

func walk(m protoreflect.Message, f func(*pb.ResponseHeader)) {
	if h, ok := m.Interface().(*pb.ResponseHeader); ok {
		f(h)
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), f)
			}
		default:
			walk(v.Message(), f)
		}
		return true
	})
}

// history makes requests at random, of few keys, so that they meet.
type history struct {
	*rand.Rand
	rev int64 // about the current revision
	// straight leaves ranges out that can hold no key.
	straight bool
}

func (h *history) pick(s ...string) []byte { return []byte(s[h.IntN(len(s))]) }
func (h *history) key() []byte             { return h.pick("a", "a/1", "a/2", "b", "b/1", "c") }
func (h *history) end() []byte             { return h.pick("", "", "\x00", "a0", "b", "c") }
func (h *history) one(in int) bool         { return h.IntN(in) == 0 }

func (h *history) span() (key, end []byte) {
	key, end = h.key(), h.end()
	if h.straight && emptyRange(key, end) {
		end = nil
	}
	return key, end
}

func (h *history) rangeRequest() *pb.RangeRequest {
	key, end := h.span()
	r := &pb.RangeRequest{Key: key, RangeEnd: end, Limit: int64(h.IntN(4)), KeysOnly: h.one(4), CountOnly: h.one(6), Serializable: h.one(2)}
	if h.one(2) {
		r.Revision = h.Int64N(h.rev + 2)
	}
	r.SortOrder = pb.RangeRequest_SortOrder(h.IntN(3))
	// Ties come in no order from etcd: these targets have none.
	r.SortTarget = []pb.RangeRequest_SortTarget{pb.RangeRequest_KEY, pb.RangeRequest_KEY, pb.RangeRequest_MOD}[h.IntN(3)]
	for _, bound := range []*int64{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if h.one(6) {
			*bound = h.Int64N(h.rev + 1)
		}
	}
	return r
}

// tied is a read whose answer has ties; compare it by key.
func (h *history) tied() *pb.RangeRequest {
	r := h.rangeRequest()
	r.Limit = 0
	r.SortTarget = []pb.RangeRequest_SortTarget{pb.RangeRequest_VERSION, pb.RangeRequest_CREATE, pb.RangeRequest_VALUE}[h.IntN(3)]
	return r
}

// stream is a read in parts, put together.
func (h *history) stream() (proto.Message, send) {
	r := h.rangeRequest()
	if !h.one(10) {
		r.SortOrder, r.SortTarget = pb.RangeRequest_NONE, pb.RangeRequest_KEY
		r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
	}
	return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
		s, err := pb.NewKVClient(c).RangeStream(ctx, r)
		if err != nil {
			return nil, err
		}
		whole := &pb.RangeResponse{}
		for {
			part, err := s.Recv()
			if err == io.EOF {
				return whole, nil
			}
			if err != nil {
				return nil, err
			}
			proto.Merge(whole, part.RangeResponse)
		}
	}
}

func (h *history) put() *pb.PutRequest {
	p := &pb.PutRequest{Key: h.key(), Value: h.pick("", "x", "y"), PrevKv: h.one(2)}
	switch h.IntN(8) {
	case 0:
		p.IgnoreValue, p.Value = true, nil
	case 1:
		p.IgnoreLease = true
	case 2, 3:
		p.Lease = 7 + h.Int64N(3)
	}
	return p
}

func (h *history) compare() *pb.Compare {
	key, end := h.span()
	c := &pb.Compare{Key: key, RangeEnd: end, Result: pb.Compare_CompareResult(h.IntN(4)), Target: pb.Compare_CompareTarget(h.IntN(5))}
	switch n := h.Int64N(h.rev + 1); c.Target {
	case pb.Compare_VERSION:
		c.TargetUnion = &pb.Compare_Version{Version: n % 3}
	case pb.Compare_CREATE:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: n}
	case pb.Compare_MOD:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: n}
	case pb.Compare_VALUE:
		c.TargetUnion = &pb.Compare_Value{Value: h.pick("", "x")}
	case pb.Compare_LEASE:
		c.TargetUnion = &pb.Compare_Lease{Lease: 7 * h.Int64N(2)}
	}
	return c
}

func (h *history) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range h.IntN(3) {
		r.Compare = append(r.Compare, h.compare())
	}
	ops := func() (out []*pb.RequestOp) {
		for range h.IntN(4) {
			op := &pb.RequestOp{}
			switch k := h.IntN(7); {
			case k < 2:
				op.Request = &pb.RequestOp_RequestRange{RequestRange: h.rangeRequest()}
			case k < 5:
				op.Request = &pb.RequestOp_RequestPut{RequestPut: h.put()}
			case k < 6 || depth == 0:
				key, end := h.span()
				d := &pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: h.one(2)}
				if string(d.RangeEnd) <= string(d.Key) {
					// See the package's documentation: here etcd errs.
					d.RangeEnd = nil
				}
				op.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}
			default:
				op.Request = &pb.RequestOp_RequestTxn{RequestTxn: h.txn(depth - 1)}
			}
			out = append(out, op)
		}
		return out
	}
	r.Success, r.Failure = ops(), ops()
	return r
}

// call is a request of any kind.
func (h *history) call() (proto.Message, send) {
	wrap := func(m proto.Message, err error) (proto.Message, error) {
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	switch k := h.IntN(20); {
	case k < 5:
		r := h.put()
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewKVClient(c).Put(ctx, r))
		}
	case k < 7:
		key, end := h.span()
		r := &pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: h.one(2)}
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewKVClient(c).DeleteRange(ctx, r))
		}
	case k < 11:
		r := h.txn(2)
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewKVClient(c).Txn(ctx, r))
		}
	case k < 12:
		return h.stream()
	case k < 13:
		r := h.tied()
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			m, err := pb.NewKVClient(c).Range(ctx, r)
			slices.SortFunc(m.GetKvs(), func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
			return wrap(m, err)
		}
	case k < 15:
		r := h.rangeRequest()
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewKVClient(c).Range(ctx, r))
		}
	case k < 16:
		r := &pb.CompactionRequest{Revision: h.Int64N(h.rev + 2), Physical: true}
		if !h.one(4) {
			r.Revision = max(0, h.rev-20)
		}
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewKVClient(c).Compact(ctx, r))
		}
	case k < 18:
		r := &pb.LeaseGrantRequest{ID: 7 + h.Int64N(3), TTL: h.Int64N(2) * 1000000}
		if r.TTL == 0 {
			r.TTL = 1000
		}
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewLeaseClient(c).LeaseGrant(ctx, r))
		}
	default:
		r := &pb.LeaseRevokeRequest{ID: 7 + h.Int64N(3)}
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			return wrap(pb.NewLeaseClient(c).LeaseRevoke(ctx, r))
		}
	}
}

// A real etcd and this server give the same answers, refusals and events to
// any history of requests.
func TestSameAsEtcd(t *testing.T) {
	etcd := startEtcd(t)
	g := newRig(t, nil)
	ctx := testContext(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	h := &history{Rand: rand.New(rand.NewPCG(seed, 1)), rev: 1}

	watched := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 2, PrevKv: true}
	ours, theirs := g.raw(t, ctx), (&rig{conn: etcd}).raw(t, ctx)
	ours.create(proto.Clone(watched).(*pb.WatchCreateRequest))
	theirs.create(watched)

	for i := range 3000 {
		what, send := h.call()
		want, wantErr := send(ctx, etcd)
		got, gotErr := send(ctx, g.conn)
		if w, g := status.Convert(wantErr), status.Convert(gotErr); w.Code() != g.Code() || w.Message() != g.Message() {
			t.Fatalf("request %d, %T %v:\n got error %v\nwant error %v", i, what, what, gotErr, wantErr)
		}
		if wantErr != nil {
			continue
		}
		scrub(want)
		scrub(got)
		if !proto.Equal(got, want) {
			t.Fatalf("request %d, %T %v:\n got %v\nwant %v", i, what, what, got, want)
		}
		if r, ok := want.(interface{ GetHeader() *pb.ResponseHeader }); ok {
			h.rev = max(h.rev, r.GetHeader().GetRevision())
		}
		if i%100 == 99 {
			sameEvents(t, ours, theirs, h.rev)
		}
	}
	sameEvents(t, ours, theirs, h.rev)
}

// sameEvents reads two watches up to revision rev.
func sameEvents(t *testing.T, ours, theirs rawWatch, rev int64) {
	t.Helper()
	read := func(w rawWatch) (out []*mvccpb.Event) {
		progress := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
		w.Send(progress)
		for {
			m := w.recv()
			if m.Canceled {
				t.Fatalf("watch was canceled: %v", m)
			}
			out = append(out, m.Events...)
			if len(m.Events) == 0 && m.Header.Revision >= rev {
				return out
			}
		}
	}
	got, want := read(ours), read(theirs)
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		// Whether the value before is still there depends on when etcd reads
		// it, if a compaction comes in between.
		if got[i].PrevKv == nil || want[i].PrevKv == nil {
			got[i], want[i] = proto.Clone(got[i]).(*mvccpb.Event), proto.Clone(want[i]).(*mvccpb.Event)
			got[i].PrevKv, want[i].PrevKv = nil, nil
		}
		if !proto.Equal(got[i], want[i]) {
			t.Fatalf("event %d:\n got %v\nwant %v", i, got[i], want[i])
		}
	}
}
