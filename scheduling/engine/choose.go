package engine

import (
	"container/heap"
	"math"
	"slices"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// limits are the lowest and the highest value of a rating over what fits.
type limits struct{ low, high int64 }

var noLimits = limits{math.MaxInt64, math.MinInt64}

func (l *limits) take(v int64) {
	if v != plugin.NoValue {
		l.low, l.high = min(l.low, v), max(l.high, v)
	}
}

func (r *rating) scaled(v int64, l limits) int64 {
	switch {
	case v == plugin.NoValue:
		return 0
	case r.Scale == nil:
		return v * r.weight
	}
	return r.Scale(v, l.low, l.high) * r.weight
}

// candidate is a group that may take the pod.
type candidate struct {
	group *group
	over  []int64
}

// choose takes the best node for a pod of the shape.
func (s *shape) choose(p *cluster.Pod) (*cluster.Node, *Refusal) {
	if s.refused != nil {
		return nil, s.refuseAll()
	}
	s.sync()
	if s.refusal != nil {
		return nil, s.refusal
	}
	for {
		n := s.best()
		if n == nil {
			if len(s.later) == 0 {
				s.refusal = s.explain()
				return nil, s.refusal
			}
			return nil, s.explain()
		}
		if len(n.Nominated) == 0 || s.judge(n, p) == nil {
			return n, nil
		}
		// It does not go together with the pods that were promised room there.
		slot := int32(n.Slot())
		x := &s.nodes[slot]
		x.reason = s.judge(n, p)
		heap.Remove(x.group, int(x.index))
		x.index = -1
		s.later = append(s.later, slot)
	}
}

// best is the node with the highest score of those that fit.
func (s *shape) best() *cluster.Node {
	rawLimits, overLimits := make([]limits, len(s.raw)), make([]limits, len(s.over))
	for i := range rawLimits {
		rawLimits[i] = noLimits
	}
	for i := range overLimits {
		overLimits[i] = noLimits
	}
	fit := make([]candidate, 0, 8)
	values := make([]int64, 0, 8*len(s.over))
	for _, g := range s.list {
		if len(g.slots) == 0 {
			continue
		}
		n := s.e.At(int(g.slots[0]))
		if s.among(n) != nil {
			continue
		}
		at := len(values)
		for i := range s.over {
			v := s.over[i].Of(n)
			overLimits[i].take(v)
			values = append(values, v)
		}
		for i, v := range g.raw {
			rawLimits[i].take(v)
		}
		fit = append(fit, candidate{g, values[at:]})
	}
	var best *group
	var most int64
	for _, c := range fit {
		x := &s.nodes[c.group.slots[0]]
		sum := x.score
		for i := range s.raw {
			sum += s.raw[i].scaled(c.group.raw[i], rawLimits[i])
		}
		for i := range s.over {
			sum += s.over[i].scaled(c.over[i], overLimits[i])
		}
		if best == nil || sum > most || sum == most && x.tie < s.nodes[best.slots[0]].tie {
			best, most = c.group, sum
		}
	}
	if best == nil {
		return nil
	}
	return s.e.At(int(best.slots[0]))
}

// explain counts the reasons of all nodes. Neighbours mostly have the same one.
func (s *shape) explain() *Refusal {
	r := newRefusal(s)
	verdicts := map[*group]*plugin.Reason{}
	var last *plugin.Reason
	times := 0
	for _, n := range s.e.Nodes() {
		why := s.verdict(n, verdicts)
		if why == nil {
			continue
		}
		if last != nil && (why == last || why.Plugin == last.Plugin && slices.Equal(why.Texts, last.Texts)) {
			times++
			continue
		}
		r.count(last, times, s.profile)
		last, times = why, 1
	}
	r.count(last, times, s.profile)
	return r
}

// verdict is what refuses a node of a built shape, nil where nothing does; the map
// is of the groups' that have been asked for.
func (s *shape) verdict(n *cluster.Node, verdicts map[*group]*plugin.Reason) *plugin.Reason {
	x := &s.nodes[n.Slot()]
	if x.reason != nil || len(s.wide) == 0 {
		return x.reason
	}
	v, ok := verdicts[x.group]
	if !ok {
		v = s.among(n)
		verdicts[x.group] = v
	}
	return v
}

func (s *shape) refuseAll() *Refusal {
	r := newRefusal(s)
	r.Pod = s.refused
	r.Plugins = []string{s.refused.Plugin}
	for _, f := range s.profile.Filters {
		if f.Name() == s.refused.Plugin {
			r.Wakes |= f.Wakes()
		}
	}
	return r
}

// enough is how many nodes that fit a scan looks for: kube-scheduler's formula.
func (s *shape) enough(nodes int) int {
	const least = 100
	pct := s.profile.Percentage
	if nodes <= least || pct >= 100 {
		return nodes
	}
	if pct == 0 {
		pct = max(50-nodes/125, 5)
	}
	return max(nodes*pct/100, least)
}

// scan looks at nodes one by one, from where the last scan ended, and takes the
// best when it has found enough.
func (s *shape) scan(p *cluster.Pod) (*cluster.Node, *Refusal) {
	if s.refused != nil {
		return nil, s.refuseAll()
	}
	nodes := s.e.Nodes()
	enough := s.enough(len(nodes))
	fit := make([]*cluster.Node, 0, min(enough, len(nodes)))
	var r *Refusal
	begin := 0
	if len(nodes) > 0 {
		begin = s.e.start % len(nodes)
	}
	looked := 0
	for looked < len(nodes) && len(fit) < enough {
		n := nodes[(begin+looked)%len(nodes)]
		looked++
		why := s.judge(n, p)
		if why == nil {
			fit = append(fit, n)
			continue
		}
		if r == nil {
			r = newRefusal(s)
		}
		r.count(why, 1, s.profile)
	}
	s.e.start = begin + looked
	if len(fit) == 0 {
		if r == nil {
			r = newRefusal(s)
		}
		return nil, r
	}
	totals := s.totals(fit)
	at := s.e.rnd.IntN(len(fit))
	for i := range totals {
		if totals[i] > totals[at] {
			at = i
		}
	}
	return fit[at], nil
}

// totals are the weighted sums of all scores of nodes that fit.
func (s *shape) totals(fit []*cluster.Node) []int64 {
	out := make([]int64, len(fit))
	if len(fit) == 1 {
		return out
	}
	for i, n := range fit {
		out[i] = s.ownScore(n)
	}
	values := make([]int64, len(fit))
	for _, r := range slices.Concat(s.raw, s.over) {
		l := noLimits
		for i, n := range fit {
			values[i] = r.Of(n)
			l.take(values[i])
		}
		for i, v := range values {
			out[i] += r.scaled(v, l)
		}
	}
	return out
}
