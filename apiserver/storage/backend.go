package storage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/store"
)

// Defaults of Options.
const (
	// DefaultRequestTimeout is etcd's own bound for one request: five seconds
	// for disks and network, two for an election.
	DefaultRequestTimeout = 7 * time.Second
	// DefaultProgressInterval is how often an idle watch that asked for
	// progress hears the current revision (kubeadm sets etcd to the same).
	DefaultProgressInterval = 5 * time.Second
	// DefaultLeaderTimeout is how long a watch that requires a leader outlives
	// the last proof of one.
	DefaultLeaderTimeout = 10 * time.Second
)

// Options configures a Backend. Store, Proposer and Leaser are required.
type Options struct {
	// Store is the local state. The Backend only reads it.
	Store *store.Store
	// Proposer orders writes and gives read indexes.
	Proposer store.Proposer
	// Leaser grants leases and keeps them alive.
	Leaser store.Leaser
	// RequestTimeout bounds every read and write, whatever the caller's
	// deadline. Zero means DefaultRequestTimeout.
	RequestTimeout time.Duration
	// ProgressInterval is the time between unsolicited progress
	// notifications. Zero means DefaultProgressInterval.
	ProgressInterval time.Duration
	// LeaderTimeout is how long the peer may be without a leader before
	// watches that require one end. Zero means DefaultLeaderTimeout.
	LeaderTimeout time.Duration
}

// Backend serves the Kubernetes API's storage from a Store. It is safe for
// concurrent use.
type Backend struct {
	store            *store.Store
	proposer         store.Proposer
	leaser           store.Leaser
	requestTimeout   time.Duration
	progressInterval time.Duration
	leader           *leaderWatch
}

// New makes a Backend. It starts nothing; Run does the periodic work.
func New(o Options) (*Backend, error) {
	if o.Store == nil || o.Proposer == nil || o.Leaser == nil {
		return nil, errors.New("storage backend needs a store, a proposer and a leaser")
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.ProgressInterval == 0 {
		o.ProgressInterval = DefaultProgressInterval
	}
	if o.LeaderTimeout == 0 {
		o.LeaderTimeout = DefaultLeaderTimeout
	}
	declareFeatures()
	b := &Backend{
		store:            o.Store,
		proposer:         o.Proposer,
		leaser:           o.Leaser,
		requestTimeout:   o.RequestTimeout,
		progressInterval: o.ProgressInterval,
	}
	b.leader = newLeaderWatch(o.Proposer, o.LeaderTimeout)
	return b, nil
}

// Client returns an etcd client that works on the Backend directly, and a
// function that ends its watches. The KV, Watcher and Lease interfaces and the
// five calls of Kubernetes are served; it has no connection, endpoints or
// maintenance calls.
func (b *Backend) Client() (*kubernetes.Client, func()) {
	c := clientv3.NewCtxClient(context.Background())
	w := newWatchHub(b)
	kv := &kvClient{b: b, hub: w}
	c.KV = clientv3.NewKVFromKVClient(kv, c)
	c.Watcher = w
	c.Lease = clientv3.NewLeaseFromLeaseClient(leaseClient{b}, c, b.requestTimeout)
	client := &kubernetes.Client{Client: c}
	client.Kubernetes = &direct{b: b, kv: kv}
	var once sync.Once
	return client, func() {
		once.Do(func() {
			_ = w.Close()
			_ = c.Close()
		})
	}
}

// CompactRevision is the revision below which the local store has no history.
// It makes the Backend an etcd3.Compactor.
func (b *Backend) CompactRevision() int64 { return b.store.CompactRevision() }

// Healthy says whether a leader answered lately. The answer is at most as old
// as one period of Run's probe, or taken now when there was none yet.
func (b *Backend) Healthy() error { return b.leader.healthy() }

// bound is the context of one request: the caller's, with the backend's limit.
func (b *Backend) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.requestTimeout)
}

// readIndex waits until the local store holds everything acknowledged before
// the call. Reading has no effect, so it is tried again while time is left:
// the span of an election passes unnoticed.
func (b *Backend) readIndex(parent context.Context) error {
	ctx, cancel := b.bound(parent)
	defer cancel()
	err := retry(ctx, func() error { return b.proposer.ReadIndex(ctx) })
	if err != nil {
		return b.refusal(parent, err)
	}
	return nil
}

// propose orders r and waits until it is applied here. It is tried again only
// while it is certain that it was not accepted.
func (b *Backend) propose(parent context.Context, r *pb.InternalRaftRequest) (store.Result, error) {
	ctx, cancel := b.bound(parent)
	defer cancel()
	var res store.Result
	err := retry(ctx, func() error {
		var err error
		res, err = b.proposer.Propose(ctx, r)
		return err
	})
	if err != nil {
		return store.Result{}, b.refusal(parent, err)
	}
	if res.Err != nil {
		return store.Result{}, res.Err
	}
	return res, nil
}

// retry calls f again while it fails for want of a leader.
func retry(ctx context.Context, f func() error) error {
	const first, most = 20 * time.Millisecond, 250 * time.Millisecond
	pause := first
	for {
		err := f()
		if err == nil || !passing(err) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
		pause = min(2*pause, most)
	}
}

// passing says whether err means that nothing was done, for a reason that may
// go away: no leader, or one that cannot be reached.
func passing(err error) bool {
	switch {
	case errors.Is(err, store.ErrUnknownOutcome),
		errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled),
		errors.Is(err, rpctypes.ErrGRPCStopped):
		return false
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Unknown
}

// refusal turns an error of the proposer into what etcd's client would give.
// The caller's own deadline or cancellation stays what it is.
func (b *Backend) refusal(parent context.Context, err error) error {
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case errors.Is(err, store.ErrUnknownOutcome):
		return rpctypes.ErrGRPCTimeoutDueToLeaderFail
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCTimeout
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCStopped
	}
	var e interface{ GRPCStatus() *status.Status }
	if errors.As(err, &e) && e.GRPCStatus().Code() != codes.Unknown {
		return e.GRPCStatus().Err()
	}
	return fmt.Errorf("%w: %w", rpctypes.ErrGRPCNoLeader, err)
}
