package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tripod-cluster/tripod/controllers"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/scheduling"
)

// why says what an object waits for, from whom decides about it. That runs on
// the leader only.
func (p *Peer) why(ctx context.Context, kind, namespace, name string) (peer.Why, error) {
	w := peer.Why{Kind: strings.ToLower(kind), Namespace: namespace, Name: name}
	p.mu.Lock()
	var m *controllers.Manager
	var s *scheduling.Scheduler
	if p.term != nil {
		m, s = p.term.manager, p.term.sched
	}
	p.mu.Unlock()
	if m == nil {
		for _, member := range p.node.Status(ctx).Peers {
			if member.Member.ID == p.node.Status(ctx).Leader && member.Member.Name != p.id.Name {
				return w, fmt.Errorf("the controllers run on the leader: run this on %s", member.Member.Name)
			}
		}
		return w, errors.New("the controllers do not run yet: see `controld status`")
	}
	switch w.Kind {
	case "pod", "pods", "po":
		x, err := s.Explain(namespace, name)
		if err != nil {
			return w, err
		}
		w.By = "scheduler"
		for _, wait := range x.Waits {
			w.Waits = append(w.Waits, peer.WhyWait(wait))
		}
		return w, nil
	}
	by, waits, err := m.Explain(kind, namespace, name)
	if err != nil {
		return w, err
	}
	w.By = "controller " + by
	for _, wait := range waits {
		w.Waits = append(w.Waits, peer.WhyWait(wait))
	}
	return w, nil
}
