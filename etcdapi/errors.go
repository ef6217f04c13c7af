package etcdapi

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// rpcError gives err the form that etcd's clients know.
func rpcError(err error) error {
	var ee rpctypes.EtcdError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrUnknownOutcome):
		// Clients do not repeat a write after this one by themselves.
		return rpctypes.ErrGRPCTimeoutDueToLeaderFail
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	case errors.As(err, &ee):
		return status.Error(ee.Code(), ee.Error())
	}
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		return st.GRPCStatus().Err()
	}
	// The Proposer knows that the request was not applied.
	return status.Error(codes.Unavailable, err.Error())
}

func (s *Server) header(revision int64) *pb.ResponseHeader {
	c := s.cfg.Cluster
	return &pb.ResponseHeader{ClusterId: c.ClusterID(), MemberId: c.Self(), Revision: revision, RaftTerm: c.Term()}
}

// fill completes the header of a response from the store.
func (s *Server) fill(h *pb.ResponseHeader) *pb.ResponseHeader {
	return s.header(h.GetRevision())
}

// wait runs f with the request timeout. A timeout that was ours and not the
// client's reads as etcd's.
func (s *Server) wait(ctx context.Context, f func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	err := f(limited)
	if err != nil && limited.Err() == context.DeadlineExceeded && ctx.Err() == nil {
		return rpctypes.ErrGRPCTimeout
	}
	return rpcError(err)
}

// propose replicates r, in the name of the caller of ctx, and returns its
// response, whose header needs filling.
func (s *Server) propose(ctx context.Context, r *pb.InternalRaftRequest) (proto.Message, error) {
	if c := s.cfg.Cluster; c.Index() > c.AppliedIndex()+MaxApplyLag {
		return nil, rpctypes.ErrGRPCRequestTooManyRequests
	}
	if r.Authenticate == nil {
		who, err := s.caller(ctx)
		if err != nil {
			return nil, err
		}
		if !who.trusted {
			// Without authentication too: it may be enabled before r is applied.
			r.Header = &pb.RequestHeader{Username: who.Username, AuthRevision: who.Revision}
		}
	}
	if proto.Size(r) > s.cfg.MaxRequestBytes {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	var res store.Result
	err := s.wait(ctx, func(ctx context.Context) (err error) {
		res, err = s.cfg.Proposer.Propose(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, rpcError(res.Err)
	}
	return res.Response, nil
}

// readIndex returns when the local store is as new as the call.
func (s *Server) readIndex(ctx context.Context) error {
	return s.wait(ctx, s.cfg.Proposer.ReadIndex)
}
