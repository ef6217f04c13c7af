package etcdapi

import (
	"bytes"
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/store"
)

// The texts are etcd's.
var (
	errMissingLeaderKey  = status.Error(codes.Unknown, `"leader" field must be provided`)
	errElectionNotLeader = status.Error(codes.Unknown, "election: not leader")
	errElectionNoLeader  = status.Error(codes.Unknown, "election: no leader")
)

type electionServer struct {
	s *Server
	v3electionpb.UnsafeElectionServer
}

// Campaign returns when the caller's lease leads. When the caller goes before
// that, its candidacy goes too.
func (e *electionServer) Campaign(ctx context.Context, r *v3electionpb.CampaignRequest) (*v3electionpb.CampaignResponse, error) {
	q := e.s.queue(r.Name)
	p, err := q.enter(ctx, r.Lease, r.Value)
	if err != nil {
		return nil, err
	}
	leader := &v3electionpb.LeaderKey{Name: r.Name, Key: p.key, Rev: p.created, Lease: p.lease}
	if !bytes.Equal(p.value, r.Value) { // it was a candidate already, with another value
		if _, err := e.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: leader, Value: r.Value}); err != nil {
			q.leave(ctx, p)
			return nil, err
		}
	}
	if !p.first {
		if err := q.turn(ctx, p); err != nil {
			q.leave(ctx, p)
			return nil, err
		}
	}
	return &v3electionpb.CampaignResponse{Header: p.header, Leader: leader}, nil
}

// ifLeads runs op if the leader key is still the caller's.
func (e *electionServer) ifLeads(ctx context.Context, l *v3electionpb.LeaderKey, op *pb.RequestOp) (*pb.TxnResponse, error) {
	if l == nil {
		return nil, errMissingLeaderKey
	}
	kv := kvServer{s: e.s}
	return kv.Txn(ctx, &pb.TxnRequest{Compare: createdAt(l.Key, l.Rev), Success: []*pb.RequestOp{op}})
}

func (e *electionServer) Proclaim(ctx context.Context, r *v3electionpb.ProclaimRequest) (*v3electionpb.ProclaimResponse, error) {
	resp, err := e.ifLeads(ctx, r.Leader, putOf(&pb.PutRequest{Key: r.Leader.GetKey(), Value: r.Value, Lease: r.Leader.GetLease()}))
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		return nil, errElectionNotLeader
	}
	return &v3electionpb.ProclaimResponse{Header: resp.Header}, nil
}

func (e *electionServer) Resign(ctx context.Context, r *v3electionpb.ResignRequest) (*v3electionpb.ResignResponse, error) {
	resp, err := e.ifLeads(ctx, r.Leader, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: r.Leader.GetKey()}}})
	if err != nil {
		return nil, err
	}
	return &v3electionpb.ResignResponse{Header: resp.Header}, nil
}

func (e *electionServer) Leader(ctx context.Context, r *v3electionpb.LeaderRequest) (*v3electionpb.LeaderResponse, error) {
	q := e.s.queue(r.Name)
	resp, err := q.kv.Range(ctx, q.byCreation(pb.RangeRequest_ASCEND, 0))
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, errElectionNoLeader
	}
	return &v3electionpb.LeaderResponse{Header: resp.Header, Kv: resp.Kvs[0]}, nil
}

// Observe sends each leader, and what it proclaims, until the caller goes.
func (e *electionServer) Observe(r *v3electionpb.LeaderRequest, stream v3electionpb.Election_ObserveServer) error {
	ctx, q := stream.Context(), e.s.queue(r.Name)
	for {
		resp, err := q.kv.Range(ctx, q.byCreation(pb.RangeRequest_ASCEND, 0))
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			// Whoever comes first leads.
			came := func(ev *mvccpb.Event) (bool, error) { return ev.Type == mvccpb.Event_PUT, nil }
			o := store.WatchOptions{Key: []byte(q.prefix), RangeEnd: prefixEnd(q.prefix), StartRevision: resp.Header.Revision + 1}
			if err := e.s.watchUntil(ctx, o, came); err != nil {
				return err
			}
			continue
		}
		leader := resp.Kvs[0]
		if err := stream.Send(&v3electionpb.LeaderResponse{Header: resp.Header, Kv: leader}); err != nil {
			return err
		}
		tell := func(ev *mvccpb.Event) (bool, error) {
			if ev.Type == mvccpb.Event_DELETE {
				return true, nil
			}
			return false, stream.Send(&v3electionpb.LeaderResponse{Header: e.s.header(ev.Kv.ModRevision), Kv: ev.Kv})
		}
		if err := e.s.watchUntil(ctx, store.WatchOptions{Key: leader.Key, StartRevision: resp.Header.Revision + 1}, tell); err != nil {
			return err
		}
	}
}
