package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Refusal says why a pod fits on no node.
type Refusal struct {
	Nodes   int            // how many there are
	Reasons map[string]int // by text: how many nodes it refused
	// Pod is set where the pod itself is the reason, whatever the node.
	Pod *plugin.Reason
	// Plugins refused it somewhere.
	Plugins []string
	// Wakes is what can change it.
	Wakes plugin.Event
	// Preemption says what came of it, in the form of the condition; empty when it
	// was not tried.
	Preemption string
}

func newRefusal(s *shape) *Refusal {
	return &Refusal{Nodes: len(s.e.Nodes()), Reasons: map[string]int{}, Wakes: plugin.NodeAdded}
}

// count notes that so many nodes have a reason.
func (r *Refusal) count(why *plugin.Reason, nodes int, prof *Profile) {
	if nodes == 0 {
		return
	}
	for _, t := range why.Texts {
		r.Reasons[t] += nodes
	}
	if slices.Contains(r.Plugins, why.Plugin) {
		return
	}
	r.Plugins = append(r.Plugins, why.Plugin)
	for _, f := range prof.Filters {
		if f.Name() == why.Plugin {
			r.Wakes |= f.Wakes()
		}
	}
}

// String is the text of the event and the condition, in kube-scheduler's form:
// every reason with its count of nodes.
func (r *Refusal) String() string {
	if r.Nodes == 0 && r.Pod == nil {
		return "no nodes available to schedule pods"
	}
	s := fmt.Sprintf("0/%d nodes are available:", r.Nodes)
	if r.Pod != nil {
		s += " " + strings.Join(r.Pod.Texts, ", ") + "."
	} else if h := histogram(r.Reasons); h != "" {
		s += " " + h + "."
	}
	if r.Preemption != "" {
		s += " preemption: " + r.Preemption
	}
	return s
}

func histogram(reasons map[string]int) string {
	var out []string
	for t, n := range reasons {
		out = append(out, fmt.Sprintf("%d %s", n, t))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
