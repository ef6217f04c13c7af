// Package localleaser is a lease service over a store of one peer, for tests. A
// lease runs out once, after the time it was granted: KeepAlive does not
// prolong it.
package localleaser

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// Leaser implements store.Leaser.
type Leaser struct {
	s    *store.Store
	p    store.Proposer
	last atomic.Int64
}

var _ store.Leaser = (*Leaser)(nil)

// New returns a Leaser that proposes to p and reads s.
func New(s *store.Store, p store.Proposer) *Leaser { return &Leaser{s: s, p: p} }

// Grant makes a lease of ttl seconds; id 0 is one more than the last.
func (l *Leaser) Grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	if id == 0 {
		id = l.last.Add(1)
	}
	resp, err := propose[*pb.LeaseGrantResponse](ctx, l.p, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id, TTL: ttl}})
	if err != nil {
		return nil, err
	}
	time.AfterFunc(time.Duration(resp.TTL)*time.Second, func() {
		_, _ = l.Revoke(context.Background(), id) // it may be gone already
	})
	return resp, nil
}

// Revoke ends a lease and deletes its keys.
func (l *Leaser) Revoke(ctx context.Context, id int64) (*pb.LeaseRevokeResponse, error) {
	return propose[*pb.LeaseRevokeResponse](ctx, l.p, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}})
}

// KeepAlive says whether the lease exists.
func (l *Leaser) KeepAlive(_ context.Context, id int64) (int64, error) {
	lease, ok := l.s.Lease(id)
	if !ok {
		return 0, rpctypes.ErrGRPCLeaseNotFound
	}
	return lease.TTL, nil
}

// TimeToLive gives the granted time, twice.
func (l *Leaser) TimeToLive(ctx context.Context, id int64) (int64, int64, error) {
	ttl, err := l.KeepAlive(ctx, id)
	return ttl, ttl, err
}

func propose[T proto.Message](ctx context.Context, p store.Proposer, r *pb.InternalRaftRequest) (T, error) {
	var none T
	res, err := p.Propose(ctx, r)
	if err != nil {
		return none, fmt.Errorf("propose a lease: %w", err)
	}
	if res.Err != nil {
		return none, res.Err
	}
	return res.Response.(T), nil
}
