package raftfsm

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

var (
	_ store.Proposer = (*Node)(nil)
	_ store.Leaser   = (*Node)(nil)
)

const (
	// maxRevokes is how many expired leases are revoked at once.
	maxRevokes = 64
	// leaseRetry is when a revoke that failed is tried again.
	leaseRetry = time.Second
)

// lessor holds the timers of the leases. Only the leader has any; a new one starts them all with their
// full TTL, since it cannot know when they were renewed, or with what was left at the last checkpoint.
type lessor struct {
	n    *Node
	wake chan struct{}

	mu     sync.Mutex
	term   uint64 // in which this peer leads, 0 if it does not
	leases map[int64]*timedLease
	queue  leaseQueue

	// recording is held by a checkpoint from the moment it looks at the leases until it is applied, and
	// shared by renewals that take one back, so that they come after it.
	recording sync.RWMutex
}

type timedLease struct {
	id      int64
	ttl     int64 // seconds
	expiry  time.Time
	slot    int // in queue
	revoked bool
	// recorded is what was left at the last checkpoint, or at one that is under way, in seconds; 0 when
	// there was none since the lease was granted or renewed.
	recorded int64
}

type leaseQueue []*timedLease

func (q leaseQueue) Len() int           { return len(q) }
func (q leaseQueue) Less(i, j int) bool { return q[i].expiry.Before(q[j].expiry) }
func (q leaseQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].slot, q[j].slot = i, j
}
func (q *leaseQueue) Push(x any) {
	l := x.(*timedLease)
	l.slot = len(*q)
	*q = append(*q, l)
}
func (q *leaseQueue) Pop() any {
	old := *q
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return l
}

func newLessor(n *Node) *lessor {
	return &lessor{n: n, wake: make(chan struct{}, 1), leases: map[int64]*timedLease{}}
}

// lead starts the timers for a leadership of term, or with 0 drops them.
func (l *lessor) lead(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = term
	l.load()
}

// load starts all timers anew. Called with mu held. A lease granted or revoked meanwhile is seen twice or
// comes through changed, which waits for mu.
func (l *lessor) load() {
	l.leases, l.queue = map[int64]*timedLease{}, nil
	if l.term == 0 {
		return
	}
	now := l.n.cfg.faults.clock()
	for _, g := range l.n.cfg.Store.Leases() {
		l.add(g, now)
	}
	l.kick()
}

func (l *lessor) add(g store.Lease, now time.Time) {
	left := g.TTL
	if g.Remaining > 0 {
		left = g.Remaining
	}
	t := &timedLease{id: g.ID, ttl: g.TTL, recorded: g.Remaining, expiry: now.Add(leaseDuration(left))}
	l.leases[g.ID] = t
	heap.Push(&l.queue, t)
}

// leaseDuration caps a TTL at what a time.Duration holds (292 years).
func leaseDuration(ttl int64) time.Duration {
	return time.Duration(min(ttl, int64(1<<63-1)/int64(time.Second))) * time.Second
}

func (l *lessor) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// changed follows the replicated set of leases; raft's apply goroutine calls it.
func (l *lessor) changed(c store.LeaseChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return
	}
	switch c.Kind {
	case store.LeaseGranted:
		if l.leases[c.Lease.ID] == nil {
			l.add(c.Lease, l.n.cfg.faults.clock())
			l.kick()
		}
	case store.LeaseCheckpointed:
		if t := l.leases[c.Lease.ID]; t != nil {
			t.recorded = c.Lease.Remaining
		}
	case store.LeaseRevoked:
		if t := l.leases[c.Lease.ID]; t != nil {
			delete(l.leases, c.Lease.ID)
			heap.Remove(&l.queue, t.slot)
		}
	case store.LeasesReset:
		l.load()
	}
}

func (l *lessor) run() {
	slots := make(chan struct{}, maxRevokes)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l.mu.Lock()
		wait := time.Hour
		var expired []int64
		now := l.n.cfg.faults.clock()
		for len(l.queue) > 0 && len(expired) < maxRevokes {
			t := l.queue[0]
			if t.expiry.After(now) {
				wait = t.expiry.Sub(now)
				break
			}
			expired = append(expired, t.id)
			t.revoked = true
			t.expiry = now.Add(leaseRetry) // it stays until its revoke is applied
			heap.Fix(&l.queue, 0)
			wait = 0
		}
		term := l.term
		l.mu.Unlock()
		for _, id := range expired {
			select {
			case slots <- struct{}{}:
			case <-l.n.stop:
				return
			}
			l.n.wg.Go(func() {
				defer func() { <-slots }()
				l.expire(id, term)
			})
		}
		timer.Reset(wait)
		select {
		case <-l.n.stop:
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// expire proposes the end of a lease. The proposal is bound to the term in which this peer led when the
// lease ran out here: a leader that was deposed meanwhile ends no lease that the new one keeps alive.
func (l *lessor) expire(id int64, term uint64) {
	req, err := proto.Marshal(&pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}})
	if err != nil {
		l.n.log.Error("cannot encode a lease revoke", "lease", id, "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(l.n.ctx, l.n.cfg.RequestTimeout)
	defer cancel()
	res, err := l.n.prop.propose(ctx, record{kind: recRequest, payload: req, term: term, vital: true})
	if err == nil {
		err = res.Err
	}
	switch {
	case err == nil:
		l.n.metrics.leasesExpired.Inc()
	case errors.Is(err, errStaleTerm), errors.Is(err, rpctypes.ErrGRPCLeaseNotFound), errors.Is(err, ErrStopped):
	default:
		l.n.log.Warn("an expired lease could not be revoked; it is tried again", "lease", id, "error", err)
	}
}

// renew starts a lease's time anew. A checkpoint is taken back first: if it cannot be, the next leader would
// end the lease too early.
func (l *lessor) renew(ctx context.Context, id int64) (int64, error) {
	for {
		ttl, recorded, err := l.restart(id)
		if err != nil || !recorded {
			return ttl, err
		}
		if err := l.unrecord(ctx, id); err != nil {
			return 0, err
		}
	}
}

// restart starts a lease's time anew, unless there is a checkpoint of it.
func (l *lessor) restart(id int64) (ttl int64, recorded bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.leases[id]
	if l.term == 0 {
		return 0, false, errNotReady
	}
	if t == nil || t.revoked {
		return 0, false, rpctypes.ErrGRPCLeaseNotFound
	}
	if t.recorded > 0 {
		return 0, true, nil
	}
	t.expiry = l.n.cfg.faults.clock().Add(leaseDuration(t.ttl))
	heap.Fix(&l.queue, t.slot)
	return t.ttl, false, nil
}

func (l *lessor) remaining(id int64) (granted, left int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.leases[id]
	if l.term == 0 {
		return 0, 0, errNotReady
	}
	if t == nil {
		return 0, 0, rpctypes.ErrGRPCLeaseNotFound
	}
	if !t.revoked {
		left = max(int64(t.expiry.Sub(l.n.cfg.faults.clock())/time.Second), 0)
	}
	return t.ttl, left, nil
}

// Grant proposes a lease of ttl seconds; an id of 0 is replaced by a free positive one.
func (n *Node) Grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	chosen := id != 0
	for {
		if !chosen {
			id = rand.Int64N(1<<63-1) + 1
		}
		res, err := n.Propose(ctx, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id, TTL: ttl}})
		if err != nil {
			return nil, err
		}
		if !chosen && errors.Is(res.Err, rpctypes.ErrGRPCLeaseExist) {
			continue
		}
		if res.Err != nil {
			return nil, res.Err
		}
		return res.Response.(*pb.LeaseGrantResponse), nil
	}
}

// Revoke proposes the end of a lease.
func (n *Node) Revoke(ctx context.Context, id int64) (*pb.LeaseRevokeResponse, error) {
	res, err := n.Propose(ctx, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}})
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, res.Err
	}
	return res.Response.(*pb.LeaseRevokeResponse), nil
}

// KeepAlive starts the lease's time anew at the leader, and returns its TTL in seconds.
func (n *Node) KeepAlive(ctx context.Context, id int64) (int64, error) {
	ttl, _, err := n.leaseOp(ctx, leaseKeepAlive, id)
	return ttl, err
}

// TimeToLive returns the TTL granted and what is left of it at the leader, in seconds.
func (n *Node) TimeToLive(ctx context.Context, id int64) (granted, remaining int64, err error) {
	return n.leaseOp(ctx, leaseTimeToLive, id)
}

const (
	leaseKeepAlive byte = iota + 1
	leaseTimeToLive
)

// leaseOp asks the leader, and goes on asking whoever leads until ctx or the request timeout ends.
func (n *Node) leaseOp(ctx context.Context, op byte, id int64) (granted, left int64, err error) {
	err = n.atLeader(ctx, func(ctx context.Context, who leader) error {
		if who.self {
			granted, left, err = n.leaseHere(ctx, op, id)
			return err
		}
		b, err := n.rpc.call(ctx, who.id, classControl, rpcLease, binary.BigEndian.AppendUint64([]byte{op}, uint64(id)))
		if err != nil {
			return err
		}
		if len(b) != 16 {
			return errRecord
		}
		granted, left = int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))
		return nil
	})
	return granted, left, err
}

// leaseHere serves a lease call at the leader. It confirms the leadership after the call arrived, and
// has applied all grants that were acknowledged before.
func (n *Node) leaseHere(ctx context.Context, op byte, id int64) (granted, left int64, err error) {
	index, err := n.confirms.index(ctx)
	if err != nil {
		return 0, 0, err
	}
	select {
	case <-n.fsm.reached(index):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	if op == leaseKeepAlive {
		ttl, err := n.leases.renew(ctx, id)
		return ttl, ttl, err
	}
	return n.leases.remaining(id)
}
