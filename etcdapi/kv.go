package etcdapi

import (
	"bytes"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

type kvServer struct {
	s *Server
	pb.UnsafeKVServer
}

func (k *kvServer) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	if !r.Serializable {
		if err := k.s.readIndex(ctx); err != nil {
			return nil, err
		}
	}
	resp, err := k.read(ctx, r)
	if err != nil {
		return nil, err
	}
	if !k.s.fits(rangeSize(resp)) {
		return nil, errLargeRead
	}
	resp.Header = k.s.fill(resp.Header)
	return resp, nil
}

// read reads the local store for the caller of ctx.
func (k *kvServer) read(ctx context.Context, r *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	permit := func(who store.AuthInfo) error { return k.s.cfg.Store.Auth().PermitRange(who, r.Key, r.RangeEnd) }
	err = k.s.permitted(ctx, permit, func() (err error) {
		resp, err = k.s.cfg.Store.Range(r)
		return err
	})
	return resp, rpcError(err)
}

// streamChunkBytes is the size from which on RangeStream begins a new message.
const streamChunkBytes = 1 << 20

// RangeStream sends the keys of one moment in messages of bounded size. The
// last one has the header, more and count.
func (k *kvServer) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := checkRange(r); err != nil {
		return err
	}
	if r.SortOrder != pb.RangeRequest_NONE && (r.SortTarget != pb.RangeRequest_KEY || r.SortOrder != pb.RangeRequest_ASCEND) {
		return status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	}
	if r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0 {
		return status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
	}
	if !r.Serializable {
		if err := k.s.readIndex(stream.Context()); err != nil {
			return err
		}
	}
	resp, err := k.read(stream.Context(), r)
	if err != nil {
		return err
	}
	kvs := resp.Kvs
	size, first := 0, 0
	for i, kv := range kvs {
		if size += proto.Size(kv); size >= streamChunkBytes && i+1 < len(kvs) {
			if err := stream.Send(&pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{Kvs: kvs[first : i+1]}}); err != nil {
				return err
			}
			size, first = 0, i+1
		}
	}
	resp.Kvs = kvs[first:]
	resp.Header = k.s.fill(resp.Header)
	return stream.Send(&pb.RangeStreamResponse{RangeResponse: resp})
}

func (k *kvServer) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	m, err := k.s.propose(ctx, &pb.InternalRaftRequest{Put: r})
	if err != nil {
		return nil, err
	}
	resp := m.(*pb.PutResponse)
	resp.Header = k.s.fill(resp.Header)
	return resp, nil
}

func (k *kvServer) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	m, err := k.s.propose(ctx, &pb.InternalRaftRequest{DeleteRange: r})
	if err != nil {
		return nil, err
	}
	resp := m.(*pb.DeleteRangeResponse)
	if !k.s.fits(size{}.add(resp.PrevKvs)) {
		return nil, errLargeAnswer
	}
	resp.Header = k.s.fill(resp.Header)
	return resp, nil
}

func (k *kvServer) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, k.s.cfg.MaxTxnOps); err != nil {
		return nil, err
	}
	var resp *pb.TxnResponse
	if store.ReadOnlyTxn(r) {
		if !serializable(r) {
			if err := k.s.readIndex(ctx); err != nil {
				return nil, err
			}
		}
		permit := func(who store.AuthInfo) error { return k.s.cfg.Store.PermitTxn(who, r) }
		err := k.s.permitted(ctx, permit, func() (err error) {
			resp, err = k.s.cfg.Store.Txn(r)
			return err
		})
		if err != nil {
			return nil, rpcError(err)
		}
		if !k.s.fits(txnSize(resp)) {
			return nil, errLargeRead
		}
	} else {
		m, err := k.s.propose(ctx, &pb.InternalRaftRequest{Txn: r})
		if err != nil {
			return nil, err
		}
		resp = m.(*pb.TxnResponse)
		if !k.s.fits(txnSize(resp)) {
			return nil, errLargeAnswer
		}
	}
	resp.Header = k.s.fill(resp.Header)
	return resp, nil
}

// serializable tells whether every read of a read-only transaction is.
func serializable(r *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if n := op.GetRequestTxn(); n != nil {
				if !serializable(n) {
					return false
				}
			} else if !op.GetRequestRange().GetSerializable() {
				return false
			}
		}
	}
	return true
}

// Compact returns when this member has compacted, physical or not: it is done
// as it is applied.
func (k *kvServer) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	m, err := k.s.propose(ctx, &pb.InternalRaftRequest{Compaction: r})
	if err != nil {
		return nil, err
	}
	resp := m.(*pb.CompactionResponse)
	resp.Header = k.s.fill(resp.Header)
	return resp, nil
}

// emptyRange tells whether no key can be in a range.
func emptyRange(key, end []byte) bool {
	if len(end) == 0 || len(end) == 1 && end[0] == 0 {
		return false
	}
	return bytes.Compare(key, end) >= 0
}
