package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// How waiting proposals leave: together, as entries of the leader or as calls to it; and how those of
// other peers come in.

// take fills a batch of at most entryBytes, or of one record that is larger.
func (p *proposer) take(leader bool) *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &batch{}
	full := p.n.disk.full.Load()
	size := entryHeader
	fits := func(n int) bool { return size == entryHeader || size+n <= entryBytes }
	if leader {
		for len(p.forward) > 0 && fits(len(p.forward[0].records)) {
			size += len(p.forward[0].records)
			b.forwarded = append(b.forwarded, p.forward[0])
			p.bytes -= len(p.forward[0].records)
			p.forward[0] = forward{}
			p.forward = p.forward[1:]
		}
	}
	for len(p.queue) > 0 && fits(len(p.queue[0].rec)) {
		w := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.bytes -= len(w.rec)
		if w.over {
			continue
		}
		if leader && full && !w.vital && !w.unsure {
			p.settle(w, settled{err: rpctypes.ErrGRPCNoSpace})
			continue
		}
		size += len(w.rec)
		b.own = append(b.own, w)
		b.was = append(b.was, w.unsure)
		w.unsure = true
	}
	if len(b.own) == 0 && len(b.forwarded) == 0 {
		return nil
	}
	b.records = newEntry(size)
	for _, f := range b.forwarded {
		b.records = append(b.records, f.records...)
	}
	for _, w := range b.own {
		b.records = append(b.records, w.rec...)
	}
	return b
}

func (p *proposer) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) > 0 || len(p.forward) > 0
}

// due tells whether what is queued should leave now, and counts it as under way.
func (p *proposer) due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flying > 0 && (p.flying >= entriesInFlight || p.bytes < overlapBytes) {
		return false
	}
	p.flying++
	return true
}

// landed ends what due began.
func (p *proposer) landed() {
	p.mu.Lock()
	p.flying--
	p.mu.Unlock()
	p.kick()
}

// run sends what is queued to wherever the leader is, until the Node stops.
func (p *proposer) run() {
	for {
		select {
		case <-p.n.stop:
			return
		case <-p.wake:
		}
		for p.pending() {
			who := p.n.lead.current()
			if !who.self {
				p.bounce()
			}
			if who.id == 0 {
				p.sweep()
				select {
				case <-who.changed:
					continue
				case <-p.wake: // something was forwarded, or abandoned
					continue
				case <-p.n.stop:
					return
				}
			}
			if !p.due() {
				break // landed, or more that waits, wakes us
			}
			b := p.take(who.self)
			if b == nil {
				p.landed()
				continue
			}
			p.n.metrics.batch.Observe(float64(len(b.records)))
			if who.self {
				fut := p.n.raft.ApplyLog(raft.Log{Data: sealEntry(b.records)}, 0)
				p.n.wg.Go(func() {
					p.finish(b, p.n.await(fut))
					p.landed()
				})
			} else {
				p.n.wg.Go(func() {
					p.finish(b, p.send(who, b.records[entryHeader:]))
					p.landed()
				})
			}
		}
	}
}

// sweep drops from the queue what nobody waits for any more, once that is most of it.
func (p *proposer) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) < 1024 || len(p.queue) < 2*len(p.open) {
		return
	}
	keep := make([]*proposal, 0, len(p.open))
	for _, w := range p.queue {
		if w.over {
			p.bytes -= len(w.rec)
		} else {
			keep = append(keep, w)
		}
	}
	p.queue = keep
}

// bounce returns what others forwarded to this peer while it does not lead.
func (p *proposer) bounce() {
	p.mu.Lock()
	fs := p.forward
	p.forward = nil
	for _, f := range fs {
		p.bytes -= len(f.records)
	}
	p.mu.Unlock()
	for _, f := range fs {
		f.done(raft.ErrNotLeader)
	}
}

// send forwards records to the leader. It gives up when the leader changes: whether the old one
// still handles them does not matter, as they are applied once.
func (p *proposer) send(who leader, records []byte) error {
	ctx, cancel := context.WithTimeout(p.n.ctx, p.n.cfg.RequestTimeout)
	defer cancel()
	go func() {
		select {
		case <-who.changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	_, err := p.n.rpc.call(ctx, who.id, classBulk, rpcPropose, records)
	return err
}

// nothingDone tells whether err means that the batch was not and will not be put into the log.
func nothingDone(err error) bool {
	var re *rpcError
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, errNotSent):
		return true
	case errors.As(err, &re):
		return re.code == codeNotLeader || re.code == codeNotReady || re.code == codeNoSpace
	}
	return false
}

func (p *proposer) finish(b *batch, err error) {
	for _, f := range b.forwarded {
		f.done(err)
	}
	if err == nil || len(b.own) == 0 {
		return // own records settle when they are applied here
	}
	var re *rpcError
	noSpace := errors.As(err, &re) && re.code == codeNoSpace
	sure := nothingDone(err)
	if !sure {
		p.n.log.Debug("proposals are sent again", "count", len(b.own), "error", err)
		p.n.metrics.retried.Add(float64(len(b.own)))
	}
	p.mu.Lock()
	var again []*proposal
	for i, w := range b.own {
		if sure {
			w.unsure = b.was[i]
		}
		switch {
		case w.over:
		case noSpace && !w.unsure && !w.vital:
			p.settle(w, settled{err: rpctypes.ErrGRPCNoSpace})
		default:
			again = append(again, w)
		}
	}
	p.mu.Unlock()
	if len(again) == 0 {
		return
	}
	time.AfterFunc(retryAfter, func() {
		p.mu.Lock()
		for _, w := range again {
			if !w.over {
				p.push(w)
			}
		}
		p.mu.Unlock()
		p.kick()
	})
}

// forwardedHere takes records that another peer forwarded.
func (p *proposer) forwardedHere(from PeerID, body []byte, done respond) {
	refuse := func(code rpcCode, text string) { done(nil, &rpcError{code, text}) }
	if !p.n.lead.current().self {
		refuse(codeNotLeader, "this peer does not lead")
		return
	}
	full := p.n.disk.full.Load()
	err := eachRecord(body, func(r record) error {
		switch {
		case r.peer != from:
			return fmt.Errorf("%w: peer %v sent a record of peer %v", errRecord, from, r.peer)
		case r.kind >= recBarrier:
			return fmt.Errorf("%w: kind %d cannot be forwarded", errRecord, r.kind)
		case full && !r.vital:
			return rpctypes.ErrGRPCNoSpace
		}
		return nil
	})
	switch {
	case errors.Is(err, rpctypes.ErrGRPCNoSpace):
		refuse(codeNoSpace, "the leader's disk is nearly full")
		return
	case err != nil:
		refuse(codeNotReady, err.Error())
		return
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		refuse(codeNotLeader, "this peer is stopping")
		return
	}
	p.forward = append(p.forward, forward{records: body, done: func(err error) { done(nil, err) }})
	p.bytes += len(body)
	p.mu.Unlock()
	p.kick()
}
