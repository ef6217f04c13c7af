// Package localleaser is a lease service over a store of one peer, with timers
// of its own, for tests.
package localleaser

import (
	"context"
	"fmt"
	"sync"
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

	mu     sync.Mutex
	timers map[int64]*time.Timer
}

var _ store.Leaser = (*Leaser)(nil)

// New returns a Leaser that proposes to p and reads s.
func New(s *store.Store, p store.Proposer) *Leaser {
	return &Leaser{s: s, p: p, timers: map[int64]*time.Timer{}}
}

// Grant makes a lease of ttl seconds; id 0 is one more than the last.
func (l *Leaser) Grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	if id == 0 {
		id = l.last.Add(1)
	}
	resp, err := propose[*pb.LeaseGrantResponse](ctx, l.p, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id, TTL: ttl}})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timers[id] = time.AfterFunc(time.Duration(resp.TTL)*time.Second, func() {
		_, _ = l.Revoke(context.Background(), id) // it may be gone already
	})
	return resp, nil
}

// Revoke ends a lease and deletes its keys.
func (l *Leaser) Revoke(ctx context.Context, id int64) (*pb.LeaseRevokeResponse, error) {
	l.mu.Lock()
	if t := l.timers[id]; t != nil {
		t.Stop()
		delete(l.timers, id)
	}
	l.mu.Unlock()
	return propose[*pb.LeaseRevokeResponse](ctx, l.p, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}})
}

// KeepAlive starts the lease's time anew.
func (l *Leaser) KeepAlive(_ context.Context, id int64) (int64, error) {
	lease, ok := l.s.Lease(id)
	if !ok {
		return 0, rpctypes.ErrGRPCLeaseNotFound
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.timers[id]; t != nil {
		t.Reset(time.Duration(lease.TTL) * time.Second)
	}
	return lease.TTL, nil
}

// TimeToLive gives the granted time, twice.
func (l *Leaser) TimeToLive(_ context.Context, id int64) (int64, int64, error) {
	lease, ok := l.s.Lease(id)
	if !ok {
		return 0, 0, rpctypes.ErrGRPCLeaseNotFound
	}
	return lease.TTL, lease.TTL, nil
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
