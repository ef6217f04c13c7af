package scheduling

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
)

// Why is what the scheduler makes of a pod now.
type Why struct {
	Namespace, Name string
	// Node on which it is, or is being bound to; empty while it is pending.
	Node string
	// State is where it is in the queue, in words, for a pod that is pending.
	State    string
	Attempts int
	Since    time.Time // when it entered the queue
	// Waits say, for people, what it waits for, by what decided it.
	Waits []Wait
	// Nodes say so node by node, with the scores of those that it fits on.
	Nodes []engine.NodeExplanation
}

// Wait is one thing that a pod waits for.
type Wait struct {
	For string // what has not happened
	By  string // who decided it, or has to act
}

var stateWords = map[where]string{
	ready: "ready, to be placed next", backing: "backing off after an attempt", waiting: "refused, waits for a change that can help",
	flying: "being placed", gated: "held by its scheduling gates",
}

// Explain says why a pod is pending, by judging all nodes again as they are now.
// It fails for a pod that there is not.
func (s *Scheduler) Explain(namespace, name string) (Why, error) {
	p, err := s.cfg.Informers.Core().V1().Pods().Lister().Pods(namespace).Get(name)
	if err != nil {
		return Why{}, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	w := Why{Namespace: namespace, Name: name, Node: p.Spec.NodeName}
	if ended(p) {
		return w, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.Node == "" {
		if _, n := s.cluster.Lookup(p.UID); n != nil {
			w.Node = n.Name
			w.Waits = append(w.Waits, Wait{For: "its binding to " + n.Name + " to be written, and its volumes to be bound", By: "scheduler"})
		}
	}
	if w.Node != "" {
		return w, nil
	}
	prof := s.profiles[p.Spec.SchedulerName]
	if prof == nil {
		w.Waits = append(w.Waits, Wait{For: "a scheduler named " + p.Spec.SchedulerName, By: "you"})
		return w, nil
	}
	if e := s.queue.byUID[p.UID]; e != nil {
		w.State, w.Attempts, w.Since = stateWords[e.at], e.attempts, e.since
	}
	for _, g := range p.Spec.SchedulingGates {
		w.Waits = append(w.Waits, Wait{For: "scheduling gate " + g.Name + " to be taken off", By: "who set it"})
	}
	if on := s.cluster.NominatedOn(p.UID); on != "" {
		w.Waits = append(w.Waits, Wait{For: "pods to go from node " + on + ", which it was promised", By: "DefaultPreemption"})
	}
	q := cluster.NewPod(p)
	x := s.engine.Explain(q, prof)
	w.Nodes = x.Nodes
	w.Waits = append(w.Waits, waits(p, x)...)
	return w, nil
}

// waits sums an explanation up: each reason with its count of nodes, and what
// would help.
func waits(p *corev1.Pod, x engine.Explanation) []Wait {
	if x.Refused != nil {
		return []Wait{{For: strings.Join(x.Refused.Texts, ", "), By: x.Refused.Plugin}}
	}
	if len(x.Nodes) == 0 {
		return []Wait{{For: "a node: there is none", By: "you"}}
	}
	type reason struct{ by, text string }
	count := map[reason]int{}
	for _, n := range x.Nodes {
		if len(n.Refusals) == 0 {
			if len(p.Spec.SchedulingGates) > 0 {
				return nil
			}
			return []Wait{{For: "its turn: it fits on node " + n.Node, By: "scheduler"}}
		}
		for _, r := range n.Refusals {
			for _, t := range r.Texts {
				count[reason{r.Plugin, t}]++
			}
		}
	}
	var out []Wait
	for r, n := range count {
		out = append(out, Wait{For: fmt.Sprintf("%d of %d: %s", n, len(x.Nodes), r.text), By: r.by})
	}
	slices.SortFunc(out, func(a, b Wait) int { return strings.Compare(a.For, b.For) })
	for _, h := range x.Help {
		out = append(out, Wait{For: "nearest help: " + h, By: "you"})
	}
	return out
}
