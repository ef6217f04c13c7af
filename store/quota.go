package store

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
)

// WithQuota returns p with a limit on the size of s: a request that could make
// it larger than limit bytes raises the NOSPACE alarm for member and is
// refused with ErrGRPCNoSpace. While the alarm is active the store itself
// refuses everything that grows; compact, delete, and then disarm it. A limit
// of 0 or less is none.
//
// The check looks at the state before the request, so that requests in flight
// together may pass it by their own size.
func WithQuota(p Proposer, s *Store, limit int64, member uint64) Proposer {
	if limit <= 0 {
		return p
	}
	return &quota{Proposer: p, s: s, limit: limit, member: member}
}

type quota struct {
	Proposer
	s      *Store
	limit  int64
	member uint64
}

func (q *quota) Propose(ctx context.Context, r *pb.InternalRaftRequest) (Result, error) {
	grows := r.Put != nil || r.LeaseGrant != nil || r.Txn != nil && puts(r.Txn)
	if !grows || q.s.Size()+int64(proto.Size(r))+versionCost <= q.limit {
		return q.Proposer.Propose(ctx, r)
	}
	if !q.s.view().alarmed(pb.AlarmType_NOSPACE) {
		alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: q.member, Alarm: pb.AlarmType_NOSPACE}
		if _, err := q.Proposer.Propose(ctx, &pb.InternalRaftRequest{Alarm: alarm}); err != nil {
			return Result{}, err
		}
	}
	return Result{Err: rpctypes.ErrGRPCNoSpace, Revision: q.s.Revision()}, nil
}
