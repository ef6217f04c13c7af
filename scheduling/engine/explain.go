package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Explanation says node by node what a decision for a pod comes of.
type Explanation struct {
	// Refused is set where no node can be right, whatever it offers.
	Refused *plugin.Reason
	Nodes   []NodeExplanation // by name
	// Help is what would let the pod in with the least change, best first.
	Help []string
}

// NodeExplanation is what one node is to the pod.
type NodeExplanation struct {
	Node string
	// Refusals are of all filters, not only of the first.
	Refusals []*plugin.Reason
	// Scores are by plugin, scaled and weighed; nil where a filter refuses.
	Scores map[string]int64
	Total  int64
}

// Explain judges every node by every filter and score, one by one, from nothing.
// It is as slow as that is, and changes nothing.
func (e *Engine) Explain(p *cluster.Pod, prof *Profile) Explanation {
	e.LookAtTerms(p.Terms)
	s := e.prepare(p, prof)
	defer e.release(s)
	out := Explanation{Refused: s.refused}
	if s.refused != nil {
		return out
	}
	checks := slices.Concat(s.local, s.wide)
	var fit []*cluster.Node
	at := map[string]int{}
	for _, n := range e.Nodes() {
		x := NodeExplanation{Node: n.Name}
		for _, c := range checks {
			if r := c.Fits(n); r != nil {
				x.Refusals = append(x.Refusals, r)
			}
		}
		if len(x.Refusals) == 0 {
			if r := s.judge(n, p); r != nil {
				x.Refusals = []*plugin.Reason{{Plugin: r.Plugin, Texts: []string{strings.Join(r.Texts, ", ") + ", with the room that other pods were promised"}}}
			} else {
				fit = append(fit, n)
			}
		}
		at[n.Name] = len(out.Nodes)
		out.Nodes = append(out.Nodes, x)
	}
	for _, r := range slices.Concat(s.own, s.raw, s.over) {
		l := noLimits
		values := make([]int64, len(fit))
		for i, n := range fit {
			values[i] = r.Of(n)
			l.take(values[i])
		}
		for i, n := range fit {
			x := &out.Nodes[at[n.Name]]
			if x.Scores == nil {
				x.Scores = map[string]int64{}
			}
			v := r.scaled(values[i], l)
			x.Scores[r.name] += v
			x.Total += v
		}
	}
	if len(fit) == 0 {
		out.Help = e.help(p, s, out.Nodes)
	}
	return out
}

// help looks at the nodes that one filter alone refuses, and asks that filter what
// it would take; the same answer of several nodes is one.
func (e *Engine) help(p *cluster.Pod, s *shape, nodes []NodeExplanation) []string {
	type answer struct {
		plugin.Help
		nodes int
	}
	var all []answer
	for _, x := range nodes {
		if len(x.Refusals) != 1 {
			continue
		}
		n := e.Get(x.Node)
		for _, f := range s.profile.Filters {
			h, ok := f.(plugin.Helper)
			if f.Name() != x.Refusals[0].Plugin || !ok {
				continue
			}
			help, ok := h.WouldHelp(p, n)
			if !ok {
				continue
			}
			if i := slices.IndexFunc(all, func(a answer) bool { return a.Text == help.Text }); i >= 0 {
				all[i].nodes++
			} else {
				all = append(all, answer{help, 1})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b answer) int {
		switch {
		case a.Cost < b.Cost:
			return -1
		case a.Cost > b.Cost:
			return 1
		}
		return b.nodes - a.nodes
	})
	var out []string
	for _, a := range all[:min(len(all), 3)] {
		on := "on 1 node"
		if a.nodes > 1 {
			on = fmt.Sprintf("on any of %d nodes", a.nodes)
		}
		out = append(out, a.Text+" "+on)
	}
	return out
}

// Fitting are the nodes that no filter refuses, by name, judged one by one.
func (e *Engine) Fitting(p *cluster.Pod, prof *Profile) []*cluster.Node {
	var out []*cluster.Node
	for _, x := range e.Explain(p, prof).Nodes {
		if len(x.Refusals) == 0 {
			out = append(out, e.Get(x.Node))
		}
	}
	return out
}
