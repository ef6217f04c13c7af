package storage

import (
	"context"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// streamChunk is the number of keys in one message of a streamed range.
const streamChunk = 1000

// kvClient is etcd's KV service without a server: clientv3 turns options into
// the requests of the API, and these are answered here.
type kvClient struct {
	b   *Backend
	hub *watchHub
}

var _ pb.KVClient = (*kvClient)(nil)

// Range answers from the local store, after a read index when r asks for the
// latest state or for a revision that has not arrived here.
func (c *kvClient) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	if err := c.b.fresh(ctx, r); err != nil {
		return nil, err
	}
	return c.b.store.Range(r)
}

func (b *Backend) fresh(ctx context.Context, r *pb.RangeRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.Serializable || r.Revision > 0 && r.Revision <= b.store.Revision() {
		return nil
	}
	return b.readIndex(ctx)
}

// RangeStream gives the same answer in chunks, all at one revision. As in
// etcd, the header and the count come with the last one.
func (c *kvClient) RangeStream(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.RangeStreamResponse], error) {
	if err := c.b.fresh(ctx, r); err != nil {
		return nil, err
	}
	resp, err := c.b.store.Range(r)
	if err != nil {
		return nil, err
	}
	return &rangeStream{ctx: ctx, resp: resp}, nil
}

// rangeStream cuts a response that is already in memory: its values are the
// store's own, so a chunk costs a slice header.
type rangeStream struct {
	grpc.ClientStream
	ctx  context.Context
	resp *pb.RangeResponse
	sent int
	done bool
}

func (s *rangeStream) Context() context.Context { return s.ctx }
func (s *rangeStream) CloseSend() error         { return nil }

func (s *rangeStream) Recv() (*pb.RangeStreamResponse, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	if s.done {
		return nil, io.EOF
	}
	end := min(s.sent+streamChunk, len(s.resp.Kvs))
	out := &pb.RangeResponse{Kvs: s.resp.Kvs[s.sent:end:end]}
	s.sent = end
	if end == len(s.resp.Kvs) {
		out.Header, out.More, out.Count = s.resp.Header, s.resp.More, s.resp.Count
		s.done = true
	}
	return &pb.RangeStreamResponse{RangeResponse: out}, nil
}

func (c *kvClient) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return proposed[*pb.PutResponse](ctx, c.b, &pb.InternalRaftRequest{Put: r})
}

func (c *kvClient) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return proposed[*pb.DeleteRangeResponse](ctx, c.b, &pb.InternalRaftRequest{DeleteRange: r})
}

// Txn proposes r unless it only reads; then the local store answers after a
// read index.
func (c *kvClient) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	if store.ReadOnlyTxn(r) {
		if err := c.b.readIndex(ctx); err != nil {
			return nil, err
		}
		return c.b.store.Txn(r)
	}
	return proposed[*pb.TxnResponse](ctx, c.b, &pb.InternalRaftRequest{Txn: r})
}

func (c *kvClient) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return proposed[*pb.CompactionResponse](ctx, c.b, &pb.InternalRaftRequest{Compaction: r})
}

// proposed orders r and gives its response as T.
func proposed[T proto.Message](ctx context.Context, b *Backend, r *pb.InternalRaftRequest) (T, error) {
	res, err := b.propose(ctx, r)
	if err != nil {
		var none T
		return none, err
	}
	return res.Response.(T), nil
}
