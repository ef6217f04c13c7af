package raftfsm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Why the term is enough (own read index, not raft.VerifyLeader): a write that was acknowledged before
// the read arrived, by a leader of a later term than ours, was preceded by that leader's election, in which
// a majority moved to the later term before it voted. Terms never go back. So if after the arrival a
// majority still is in our term, no later leader had acknowledged anything, and our commit index at the
// arrival covers all acknowledged writes, given that we had committed an entry of our own term.

// round is one confirmation that serves all who joined before it began.
type round struct {
	done  chan struct{}
	index uint64
	err   error
}

// confirmer runs rounds, one at a time, at the leader.
type confirmer struct {
	n       *Node
	mu      sync.Mutex
	next    *round
	running bool
}

// index returns the commit index as of a moment after the call, having made sure of being leader then.
func (c *confirmer) index(ctx context.Context) (uint64, error) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &round{done: make(chan struct{})}
	}
	r := c.next
	if !c.running {
		c.running = true
		c.n.wg.Go(c.run)
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (c *confirmer) run() {
	for {
		c.mu.Lock()
		r := c.next
		c.next = nil
		if r == nil {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		r.index, r.err = c.n.confirm()
		close(r.done)
	}
}

var errNotReady = errors.New("this peer does not lead, or has not yet committed an entry of its term")

// confirm asks a majority of the voters whether they still are in this leader's term.
func (n *Node) confirm() (uint64, error) {
	term := n.lead.readyTerm()
	if term == 0 {
		return 0, errNotReady
	}
	// What raft has committed beyond the leader's own disk was acknowledged to nobody yet; see ahead.go.
	index := n.logs.commitCap(n.raft.CommitIndex())
	ctx, cancel := context.WithTimeout(n.ctx, 2*n.cfg.HeartbeatTimeout)
	defer cancel()
	voters, acks := 0, 0
	answers := make(chan error, len(n.raft.GetConfiguration().Configuration().Servers))
	asked := 0
	body := binary.BigEndian.AppendUint64(nil, term)
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		id, err := ParsePeerID(string(s.ID))
		if err != nil {
			continue
		}
		if id == n.id {
			acks++
			continue
		}
		if asked++; asked > cap(answers) {
			break // the configuration grew meanwhile: the next round sees it
		}
		n.wg.Go(func() {
			_, err := n.rpc.call(ctx, id, classControl, rpcConfirm, body)
			answers <- err
		})
	}
	need := voters/2 + 1
	var last error
	for i := 0; acks < need && i < asked; i++ {
		if err := <-answers; err != nil {
			last = err
		} else {
			acks++
		}
	}
	if acks < need {
		return 0, fmt.Errorf("%d of %d voters confirmed the leader in term %d, %d are needed: %w", acks, voters, term, need, last)
	}
	// This peer's own answer, given after the read arrived like the others'.
	if n.lead.readyTerm() != term {
		return 0, errNotReady
	}
	return index, nil
}

// confirmHere answers a leader that asks whether its term is still ours.
func (n *Node) confirmHere(body []byte) error {
	if len(body) != 8 {
		return errRecord
	}
	asked := binary.BigEndian.Uint64(body)
	if term := n.raft.CurrentTerm(); term != asked {
		return &rpcError{codeNotReady, fmt.Sprintf("this peer is in term %d, not %d", term, asked)}
	}
	return nil
}

// reader batches the linearizable reads of this peer.
type reader struct {
	n       *Node
	mu      sync.Mutex
	waiting []chan error
	wake    chan struct{}
}

// ReadIndex returns when the local store holds every write that was acknowledged anywhere before the call.
// Errors: rpctypes.ErrGRPCNoLeader, ErrGRPCTimeout, ErrStopped, or that of ctx.
func (n *Node) ReadIndex(ctx context.Context) error {
	if stale := n.cfg.faults.staleReads; stale != nil && stale() {
		return nil
	}
	began := time.Now()
	defer func() { n.metrics.readIndex.Observe(time.Since(began).Seconds()) }()
	ch := make(chan error, 1)
	n.reads.mu.Lock()
	n.reads.waiting = append(n.reads.waiting, ch)
	n.reads.mu.Unlock()
	select {
	case n.reads.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		if n.lead.current().id == 0 {
			return rpctypes.ErrGRPCNoLeader
		}
		return rpctypes.ErrGRPCTimeout
	case <-n.stop:
		return ErrStopped
	}
}

func (r *reader) run() {
	slots := make(chan struct{}, 2)
	for {
		select {
		case <-r.n.stop:
			return
		case <-r.wake:
		}
		select {
		case slots <- struct{}{}:
		case <-r.n.stop:
			return
		}
		r.mu.Lock()
		batch := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		r.n.wg.Go(func() {
			defer func() { <-slots }()
			if len(batch) == 0 {
				return
			}
			err := r.round()
			for _, ch := range batch {
				ch <- err
			}
		})
	}
}

// round tries until it succeeds or the request timeout has passed: a read may be tried again at will.
func (r *reader) round() error {
	n := r.n
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.RequestTimeout)
	defer cancel()
	for {
		who := n.lead.current()
		index, err := r.index(ctx, who)
		if err == nil {
			select {
			case <-n.fsm.reached(index):
				return nil
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		var pause <-chan time.Time
		if who.id != 0 {
			pause = time.After(retryAfter)
		}
		select {
		case <-pause:
		case <-who.changed:
		case <-ctx.Done():
			switch {
			case n.stopping():
				return ErrStopped
			case who.id == 0:
				return rpctypes.ErrGRPCNoLeader
			}
			n.log.Debug("read index timed out", "leader", who.id.String(), "error", err)
			return rpctypes.ErrGRPCTimeout
		}
	}
}

func (r *reader) index(ctx context.Context, who leader) (uint64, error) {
	switch {
	case who.id == 0:
		return 0, rpctypes.ErrGRPCNoLeader
	case who.self:
		return r.n.confirms.index(ctx)
	}
	// A leader that hangs must not hold up the reads for the whole timeout.
	ctx, cancel := context.WithTimeout(ctx, 4*r.n.cfg.HeartbeatTimeout)
	defer cancel()
	b, err := r.n.rpc.call(ctx, who.id, classControl, rpcReadIndex, nil)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, errRecord
	}
	return binary.BigEndian.Uint64(b), nil
}
