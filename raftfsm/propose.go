package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

const (
	// entriesInFlight is how many entries (at the leader) or batches (at a follower) are under way at once, at most. While
	// one is, another leaves only when overlapBytes wait: what an entry costs, with an fsync on every peer, is mostly
	// the same however small it is, so entries that grow with the load make more of the disk and of the processor.
	entriesInFlight = 4
	overlapBytes    = 64 << 10
	// maxOpen bounds the proposals that wait at one peer.
	maxOpen = 1 << 16
	// retryAfter spaces attempts to propose the same record again.
	retryAfter = 20 * time.Millisecond
)

// ErrStopped means that this peer is stopping; the request was not and will not be applied.
var ErrStopped = errors.New("this peer is stopping: ask another one")

// unknownOutcome wraps store.ErrUnknownOutcome with what happened, and tells gRPC clients
// what etcd tells them.
type unknownOutcome struct{ why error }

func (e *unknownOutcome) Error() string {
	return fmt.Sprintf("%v (%v)", store.ErrUnknownOutcome, e.why)
}
func (e *unknownOutcome) Unwrap() []error { return []error{store.ErrUnknownOutcome, e.why} }
func (e *unknownOutcome) GRPCStatus() *status.Status {
	return status.Convert(rpctypes.ErrGRPCTimeout)
}

// proposal is a record that waits for its own apply.
type proposal struct {
	seq  uint64
	rec  []byte // with its length
	done chan settled
	// unsure is set while, or after, the record was handed on and may be applied.
	unsure bool
	// vital: see recEssential.
	vital bool
	// over is set once the proposer does not wait any more.
	over bool
}

type settled struct {
	result store.Result
	err    error
}

// batch is what travels as one entry or one forwarded call.
type batch struct {
	own       []*proposal
	was       []bool // unsure before this attempt
	forwarded []forward
	records   []byte
}

type forward struct {
	records []byte
	done    func(error)
}

// proposer numbers, queues, sends and settles the records of this peer; at the leader it also
// merges in those that other peers forward.
type proposer struct {
	n *Node

	mu      sync.Mutex
	open    map[uint64]*proposal
	seq     uint64 // last one given out
	floor   uint64 // all up to here are over
	queue   []*proposal
	forward []forward
	bytes   int // in queue and forward
	flying  int // entries or batches under way
	closed  bool
	room    chan struct{} // closed and replaced when proposals were settled while some waited for room
	wake    chan struct{}
}

func newProposer(n *Node) *proposer {
	return &proposer{n: n, open: map[uint64]*proposal{}, room: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// Propose replicates r and returns its result once it was applied here. It may be called from any
// goroutine; r must not change until it returned. The end of ctx, or of Config.RequestTimeout,
// ends the wait. Errors: one that wraps store.ErrUnknownOutcome when r may have been applied or
// may still be; otherwise r was not and will not be applied: rpctypes.ErrGRPCNoLeader,
// ErrGRPCTimeout, ErrGRPCRequestTooLarge, ErrGRPCNoSpace, ErrStopped or that of ctx.
func (n *Node) Propose(ctx context.Context, r *pb.InternalRaftRequest) (store.Result, error) {
	b, err := proto.Marshal(r)
	if err != nil {
		return store.Result{}, fmt.Errorf("encode the request: %w", err)
	}
	vital := r.LeaseRevoke != nil || r.Compaction != nil || r.Alarm != nil || r.DeleteRange != nil
	return n.prop.propose(ctx, record{kind: recRequest, payload: b, vital: vital})
}

func (p *proposer) propose(ctx context.Context, r record) (store.Result, error) {
	if len(r.payload) > MaxRequestBytes {
		return store.Result{}, rpctypes.ErrGRPCRequestTooLarge
	}
	began := time.Now()
	defer func() { p.n.metrics.propose.Observe(time.Since(began).Seconds()) }()
	bounded, cancel := context.WithTimeout(ctx, p.n.cfg.RequestTimeout)
	defer cancel()
	w, err := p.add(bounded, r)
	if err != nil {
		return store.Result{}, p.noChance(ctx, bounded, err)
	}
	select {
	case s := <-w.done:
		return s.result, s.err
	case <-bounded.Done():
	case <-p.n.stop:
	}
	if s, ok := p.abandon(w); ok {
		return s.result, s.err
	}
	why := bounded.Err()
	if why == nil {
		why = ErrStopped
	}
	if w.unsure {
		p.n.metrics.unknown.Inc()
		return store.Result{}, &unknownOutcome{why}
	}
	return store.Result{}, p.noChance(ctx, bounded, why)
}

// noChance names why a request never left this peer.
func (p *proposer) noChance(ctx, bounded context.Context, err error) error {
	switch {
	case bounded.Err() == nil:
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case p.n.lead.current().id == 0:
		return rpctypes.ErrGRPCNoLeader
	default:
		return rpctypes.ErrGRPCTimeout
	}
}

func (p *proposer) add(ctx context.Context, r record) (*proposal, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, ErrStopped
		}
		if len(p.open) < maxOpen && p.seq-p.floor < maxWindow/2 {
			break
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.n.stop:
			return nil, ErrStopped
		}
	}
	p.seq++
	r.peer, r.boot, r.seq, r.floor = p.n.id, p.n.boot, p.seq, p.floor
	w := &proposal{seq: p.seq, done: make(chan settled, 1), vital: r.vital}
	w.rec = r.appendTo(make([]byte, 0, len(r.payload)+48))
	p.open[w.seq] = w
	p.push(w)
	p.mu.Unlock()
	p.kick()
	return w, nil
}

func (p *proposer) push(w *proposal) {
	p.queue = append(p.queue, w)
	p.bytes += len(w.rec)
}

func (p *proposer) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// settle ends the wait for w. Called with mu held.
func (p *proposer) settle(w *proposal, s settled) {
	if w.over {
		return
	}
	w.over = true
	delete(p.open, w.seq)
	w.done <- s
	p.sink()
}

// sink raises the floor over what is settled. Called with mu held.
func (p *proposer) sink() {
	full := p.seq-p.floor >= maxWindow/2 || len(p.open)+1 >= maxOpen
	for p.floor < p.seq {
		if _, waiting := p.open[p.floor+1]; waiting {
			break
		}
		p.floor++
	}
	if full {
		close(p.room)
		p.room = make(chan struct{})
	}
}

// abandon ends the wait from the caller's side; true with the outcome if it came first.
func (p *proposer) abandon(w *proposal) (settled, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.over {
		return <-w.done, true
	}
	w.over = true
	delete(p.open, w.seq)
	p.sink()
	return settled{}, false
}

// resolve delivers results of own records; raft's apply goroutine calls it.
func (p *proposer) resolve(os []outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range os {
		if w := p.open[o.seq]; w != nil {
			p.settle(w, settled{result: o.result})
		}
	}
}

// restored settles what a snapshot from the leader skipped: it was applied, but with what result
// nobody here can tell.
func (p *proposer) restored(s *session) {
	if s == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for seq, w := range p.open {
		if s.has(seq) {
			p.settle(w, settled{err: &unknownOutcome{errors.New("it was applied, but this peer was far behind and got the state without the results")}})
		}
	}
}

func (p *proposer) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.bounce()
}

func (p *proposer) pendingCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}
