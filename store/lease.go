package store

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// MinLeaseTTL is what a shorter TTL is raised to, in seconds; etcd's
	// default.
	MinLeaseTTL = 2
	// MaxLeaseTTL is the longest TTL that is granted, in seconds; etcd's.
	MaxLeaseTTL = 9_000_000_000
)

// Leaser is the cluster's lease service. The raft leader owns the timers, so
// the implementation forwards to it; the store only knows which leases exist.
//
// Errors are rpctypes gRPC errors (ErrGRPCLeaseNotFound, ErrGRPCLeaseExist,
// ErrGRPCLeaseTTLTooLarge, ErrGRPCNoLeader, ErrGRPCTimeout) or ErrUnknownOutcome.
type Leaser interface {
	// Grant proposes a lease of ttl seconds. When id is 0 the implementation
	// chooses a positive one that is free.
	Grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error)
	// Revoke proposes the end of a lease; its keys are deleted with it.
	Revoke(ctx context.Context, id int64) (*pb.LeaseRevokeResponse, error)
	// KeepAlive starts the lease's time anew and returns its TTL in seconds.
	// It returns ErrGRPCLeaseNotFound when the lease has ended.
	KeepAlive(ctx context.Context, id int64) (ttl int64, err error)
	// TimeToLive returns the granted TTL and what is left of it, in seconds.
	TimeToLive(ctx context.Context, id int64) (granted, remaining int64, err error)
}

// Lease is a lease as it is replicated.
type Lease struct {
	ID int64
	// TTL is what was granted, in seconds.
	TTL int64
	// Remaining is what was left at the last checkpoint, in seconds; 0 when
	// there was none since it was granted.
	Remaining int64
}

// LeaseChange tells what happened to the set of leases.
type LeaseChange struct {
	// Lease is the lease after the change; of a revoked one, as it last was.
	Lease Lease
	// Kind is one of LeaseGranted, LeaseCheckpointed, LeaseRevoked, LeasesReset.
	Kind LeaseChangeKind
}

// LeaseChangeKind is the kind of a LeaseChange.
type LeaseChangeKind int

const (
	// LeaseGranted: a lease is new.
	LeaseGranted LeaseChangeKind = iota
	// LeaseCheckpointed: a lease has another Remaining.
	LeaseCheckpointed
	// LeaseRevoked: a lease is gone.
	LeaseRevoked
	// LeasesReset: the whole set was replaced by Restore; read Leases again.
	LeasesReset
)

// Leases returns all leases, ordered by ID. The slice is the caller's.
func (s *Store) Leases() []Lease { return s.view().leases.Values() }

// Lease returns one lease; false when it does not exist.
func (s *Store) Lease(id int64) (Lease, bool) { return s.view().leases.Get(id) }

// LeaseKeys returns the keys attached to a lease, in order; nil when there are
// none. The bytes are shared: do not change them.
func (s *Store) LeaseKeys(id int64) [][]byte {
	var keys [][]byte
	st := s.view()
	st.eachLeaseKey(id, func(key string) {
		e, _ := st.keys.Get(key)
		keys = append(keys, e.latest.Key)
	})
	return keys
}

// LeaseVersion grows with every change of the set of leases.
func (s *Store) LeaseVersion() uint64 { return s.leaseVersion.Load() }

func (st *state) eachLeaseKey(id int64, f func(key string)) {
	st.leaseKeys.Ascend(leaseKey{lease: id}, func(k leaseKey) bool {
		if k.lease != id {
			return false
		}
		f(k.key)
		return true
	})
}

func (s *Store) leaseChanged(kind LeaseChangeKind, l Lease) {
	s.leaseVersion.Add(1)
	if s.onLease != nil {
		s.onLease(LeaseChange{Lease: l, Kind: kind})
	}
}

func (s *Store) applyLeaseGrant(r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	st := s.cur
	if r.ID == 0 {
		// The proposer chooses; 0 is no lease.
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	if r.TTL > MaxLeaseTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	if _, ok := st.leases.Get(r.ID); ok {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	l := Lease{ID: r.ID, TTL: max(r.TTL, MinLeaseTTL)}
	st.leases.Set(l.ID, l)
	s.leaseChanged(LeaseGranted, l)
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{Revision: st.rev}, ID: l.ID, TTL: l.TTL}, nil
}

func (s *Store) applyLeaseRevoke(r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	st := s.cur
	l, ok := st.leases.Get(r.ID)
	if !ok {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	var keys []string
	st.eachLeaseKey(r.ID, func(key string) { keys = append(keys, key) })
	t := st.begin()
	for _, key := range keys {
		e, _ := st.keys.Get(key)
		t.delete(e.latest)
	}
	t.end()
	st.leases.Delete(r.ID)
	s.leaseChanged(LeaseRevoked, l)
	return &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{Revision: st.rev}}, nil
}

func (s *Store) applyLeaseCheckpoint(r *pb.LeaseCheckpointRequest) (*pb.LeaseCheckpointResponse, error) {
	st := s.cur
	// One that was revoked meanwhile must not keep the others from theirs.
	known := r.Checkpoints[:0:0]
	for _, c := range r.Checkpoints {
		if _, ok := st.leases.Get(c.ID); ok {
			known = append(known, c)
		}
	}
	if len(known) == 0 {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	for _, c := range known {
		l, _ := st.leases.Get(c.ID)
		l.Remaining = c.Remaining_TTL
		st.leases.Set(l.ID, l)
		s.leaseChanged(LeaseCheckpointed, l)
	}
	return &pb.LeaseCheckpointResponse{Header: &pb.ResponseHeader{Revision: st.rev}}, nil
}
