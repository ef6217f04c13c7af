package scheduling

import (
	"context"
	"time"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// reserve takes what the pod needs beside room on the node. Its caller has the
// lock.
func (s *Scheduler) reserve(p *cluster.Pod, n *cluster.Node, prof *engine.Profile) ([]plugin.Reservation, error) {
	var held []plugin.Reservation
	for _, f := range prof.Filters {
		r, ok := f.(plugin.Reserver)
		if !ok {
			continue
		}
		x, err := r.Reserve(p, n, s.objects)
		if err != nil {
			releaseAll(held)
			return nil, err
		}
		if x != nil {
			held = append(held, x)
		}
	}
	return held, nil
}

// releaseAll ends reservations; its caller has the lock.
func releaseAll(held []plugin.Reservation) {
	for _, r := range held {
		r.Release()
	}
}

// commit makes the reservations so, and says whether the pod can be bound.
func (p *placer) commit(ctx context.Context, e *pending, held []plugin.Reservation) bool {
	for _, r := range held {
		if err := r.Commit(ctx, p.cfg.Client); err != nil {
			p.giveUp(e, held)
			if ctx.Err() == nil {
				p.explain(ctx, e.pod.Pod, err.Error(), nil)
			}
			return false
		}
	}
	return true
}

// giveUp takes a placement back; the pod is tried again after a pause.
func (p *placer) giveUp(e *pending, held []plugin.Reservation) {
	p.metrics.failed(e, time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	_, n := p.cluster.Lookup(e.pod.UID)
	p.cluster.Forget(e.pod.UID)
	releaseAll(held)
	p.queue.retry(e, time.Now())
	if n != nil {
		p.tell(plugin.Change{Kind: plugin.PodRemoved, Node: n, Pod: e.pod})
	}
	p.kick()
}
