package store

import (
	"context"
	"errors"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// ErrUnknownOutcome is returned by a Proposer when the request may or may not
// have been applied, or may still be: leadership was lost while it was in
// flight, or the caller stopped waiting. Whoever repeats such a request must
// be able to live with it being applied twice.
var ErrUnknownOutcome = errors.New("outcome of the request is unknown: it may or may not have been applied; read before you repeat it")

// Result is what applying one request gave.
type Result struct {
	// Response is the etcd response of the request's kind (*pb.PutResponse,
	// *pb.TxnResponse, *pb.LeaseGrantResponse, ...), nil when Err is set. Its
	// header carries the revision; cluster and member ID are left 0.
	Response proto.Message
	// Err is a deterministic refusal, the same on every peer: an rpctypes
	// gRPC error such as ErrGRPCCompacted.
	Err error
	// Revision is the revision of the store after this request.
	Revision int64
}

// Proposer puts requests into the one order that all peers apply.
type Proposer interface {
	// Propose replicates r and returns its result once it was applied here.
	// The end of ctx ends the wait, not the request. An error other than
	// ErrUnknownOutcome means that r was not and will not be applied.
	Propose(ctx context.Context, r *pb.InternalRaftRequest) (Result, error)
	// ReadIndex returns when the local store holds every write that was
	// acknowledged anywhere before the call.
	ReadIndex(ctx context.Context) error
}

// Local is a Proposer that applies to one store directly: a cluster of one,
// without a log. It is the rig for testing what sits on a Proposer.
type Local struct {
	mu sync.Mutex
	s  *Store
}

// NewLocal returns a Proposer over s. Nobody else may call s.Apply.
func NewLocal(s *Store) *Local { return &Local{s: s} }

// Propose applies a copy of r at once. It fails only when ctx has ended.
func (l *Local) Propose(ctx context.Context, r *pb.InternalRaftRequest) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	r = proto.Clone(r).(*pb.InternalRaftRequest)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.s.Apply(r), nil
}

// ReadIndex returns at once: a write is acknowledged after it was applied.
func (l *Local) ReadIndex(ctx context.Context) error { return ctx.Err() }
