package engine

import (
	"container/heap"
	"encoding/binary"
	"math"
	"slices"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// shape is what has been worked out for pods that are alike.
type shape struct {
	e       *Engine
	key     string
	profile *Profile
	pod     *cluster.Pod   // the one it was made for
	refused *plugin.Reason // no node can be right

	epoch, services uint64
	counters        []*cluster.Counter // to be given back

	local []check  // hang on the node alone
	wide  []check  // hang on counters too
	own   []rating // 0 to MaxScore, of the node alone
	raw   []rating // of the node alone, to be scaled
	over  []rating // of counters too

	dims   []dimension
	built  bool
	cursor uint64 // in the cluster's journal
	nodes  []entry
	groups map[string]*group
	list   []*group // in the order in which they were made
	later  []int32  // slots to be looked at again at the next change

	refusal *Refusal // as long as nothing changes
	victims map[int32]*Victims
	budgets uint64 // of the engine, when victims were found
}

type check struct {
	plugin.Filter
	*plugin.Check
}

type rating struct {
	*plugin.Rating
	name   string
	weight int64
}

// dimension is a counter that tells nodes apart: by the domain of its key, or,
// where there are many, by the count that their domains have.
type dimension struct {
	counter *cluster.Counter
	counts  bool
}

// manyDomains is from how many on groups are by count.
const manyDomains = 32

// entry is what is known of one node.
type entry struct {
	reason *plugin.Reason // of the local checks; nil: fits
	score  int64
	tie    uint32 // order among equal scores
	group  *group
	index  int32 // in the group's heap
}

// group is a set of nodes that the rest of the cluster makes equal. Those that fit
// by themselves are a heap, best first.
type group struct {
	shape *shape
	key   string
	raw   []int64 // of shape.raw
	slots []int32
}

func (g *group) Len() int { return len(g.slots) }
func (g *group) Less(i, j int) bool {
	a, b := &g.shape.nodes[g.slots[i]], &g.shape.nodes[g.slots[j]]
	if a.score != b.score {
		return a.score > b.score
	}
	return a.tie < b.tie
}
func (g *group) Swap(i, j int) {
	g.slots[i], g.slots[j] = g.slots[j], g.slots[i]
	g.shape.nodes[g.slots[i]].index, g.shape.nodes[g.slots[j]].index = int32(i), int32(j)
}
func (g *group) Push(x any) {
	slot := x.(int32)
	g.shape.nodes[slot].index = int32(len(g.slots))
	g.slots = append(g.slots, slot)
}
func (g *group) Pop() any {
	s := g.slots[len(g.slots)-1]
	g.slots = g.slots[:len(g.slots)-1]
	return s
}

// prepare asks the profile's plugins about the pod.
func (e *Engine) prepare(p *cluster.Pod, prof *Profile) *shape {
	s := &shape{e: e, profile: prof, pod: p, services: e.services}
	v := view{e.Cluster, e.objects, s}
	for _, f := range prof.Filters {
		c, r := f.Prepare(p, v)
		switch {
		case r != nil:
			s.refused = r
		case c == nil:
			continue
		case len(c.Over) == 0:
			s.local = append(s.local, check{f, c})
		default:
			s.wide = append(s.wide, check{f, c})
			s.dimensions(c.Over)
		}
		if r != nil {
			break
		}
	}
	if s.refused == nil {
		for _, w := range prof.Scores {
			r := w.Prepare(p, v)
			if r == nil {
				continue
			}
			x := rating{r, w.Name(), w.Weight}
			switch {
			case len(r.Over) > 0:
				s.over = append(s.over, x)
				s.dimensions(r.Over)
			case r.Scale != nil:
				s.raw = append(s.raw, x)
			default:
				s.own = append(s.own, x)
			}
		}
	}
	// A counter that was made later may have moved the epoch.
	e.Refresh(s.counters)
	s.epoch = e.Epoch()
	for i := range s.dims {
		s.dims[i].counts = s.dims[i].counter.Topology().Domains() > manyDomains
	}
	return s
}

func (s *shape) dimensions(over []*cluster.Counter) {
	for _, c := range over {
		if !slices.ContainsFunc(s.dims, func(d dimension) bool { return d.counter == c }) {
			s.dims = append(s.dims, dimension{counter: c})
		}
	}
}

// stale says that the shape must be prepared anew.
func (s *shape) stale() bool {
	return s.epoch != s.e.Epoch() || s.services != s.e.services
}

// alone judges a node by the local checks, with the pods that were promised room
// on it before p.
func (s *shape) alone(n *cluster.Node) *plugin.Reason {
	for i := range s.local {
		if r := s.local[i].Fits(n); r != nil {
			return r
		}
	}
	return nil
}

func (s *shape) among(n *cluster.Node) *plugin.Reason {
	for i := range s.wide {
		if r := s.wide[i].Fits(n); r != nil {
			return r
		}
	}
	return nil
}

// judge is the whole verdict on a node, also beside the pods that were promised
// room there.
func (s *shape) judge(n *cluster.Node, p *cluster.Pod) *plugin.Reason {
	r := s.alone(n)
	if r == nil {
		r = s.among(n)
	}
	if r != nil || len(n.Nominated) == 0 {
		return r
	}
	if above := n.NominatedAbove(p); len(above) > 0 {
		s.e.With(n, above, func() {
			if r = s.alone(n); r == nil {
				r = s.among(n)
			}
		})
	}
	return r
}

func (s *shape) ownScore(n *cluster.Node) int64 {
	var sum int64
	for i := range s.own {
		sum += s.own[i].weight * s.own[i].Of(n)
	}
	return sum
}

// evaluate makes the entry of a node; the pods promised to it apart.
func (s *shape) evaluate(n *cluster.Node, x *entry) {
	x.reason, x.score = s.alone(n), 0
	if x.reason == nil {
		x.score = s.ownScore(n)
	}
}

// build works out every node.
func (s *shape) build() {
	c := s.e.Cluster
	s.cursor = c.Now()
	s.nodes, s.groups, s.list, s.later, s.refusal = make([]entry, c.Slots()), map[string]*group{}, nil, nil, nil
	s.victims = map[int32]*Victims{}
	nodes := c.Nodes()
	each(len(nodes), func(i int) { s.evaluate(nodes[i], &s.nodes[nodes[i].Slot()]) })
	for _, n := range nodes {
		s.besidePromised(n)
		s.enter(n)
	}
	s.built = true
}

// besidePromised judges a node again beside the pods that were promised room.
func (s *shape) besidePromised(n *cluster.Node) {
	x := &s.nodes[n.Slot()]
	if x.reason != nil || len(n.Nominated) == 0 {
		return
	}
	if above := n.NominatedAbove(s.pod); len(above) > 0 {
		s.e.With(n, above, func() { x.reason = s.alone(n) })
	}
}

// enter puts a node into its group.
func (s *shape) enter(n *cluster.Node) {
	slot := int32(n.Slot())
	x := &s.nodes[slot]
	x.tie = s.e.rnd.Uint32()
	var buf [64]byte
	key := buf[:0]
	for i := range s.dims {
		d := &s.dims[i]
		v := int64(-1)
		if k := d.counter.Topology().Domain(n); k >= 0 {
			v = int64(k)
			if d.counts {
				v, _ = d.counter.In(n)
			}
		} else if d.counts {
			v = math.MinInt64
		}
		key = binary.AppendVarint(key, v)
	}
	var rawBuf [4]int64
	raw := rawBuf[:0]
	for i := range s.raw {
		v := int64(0)
		if x.reason == nil {
			v = s.raw[i].Of(n)
		}
		raw = append(raw, v)
		key = binary.AppendVarint(key, v)
	}
	g := s.groups[string(key)]
	if g == nil {
		g = &group{shape: s, key: string(key), raw: slices.Clone(raw)}
		s.groups[g.key] = g
		s.list = append(s.list, g)
	}
	x.group = g
	if x.reason == nil {
		heap.Push(g, slot)
	} else {
		x.index = -1
	}
}

func (s *shape) leave(slot int32) {
	x := &s.nodes[slot]
	if g := x.group; g != nil {
		if x.index >= 0 {
			heap.Remove(g, int(x.index))
		}
		x.group, x.index = nil, -1
	}
}

// sync takes in what changed since the last pod.
func (s *shape) sync() {
	if !s.built {
		s.build()
		return
	}
	c := s.e.Cluster
	slots, next, ok := c.Changed(s.cursor)
	if !ok || len(slots) > c.Slots() {
		s.build()
		return
	}
	if len(slots) == 0 && len(s.later) == 0 {
		return
	}
	s.cursor, s.refusal = next, nil
	again := s.later
	s.later = nil
	for _, l := range [][]int32{again, slots} {
		for i, slot := range l {
			if i > 0 && l[i-1] == slot {
				continue
			}
			s.redo(slot)
			for j := range s.dims {
				d := &s.dims[j]
				if !d.counts {
					continue
				}
				n := c.At(int(slot))
				if n == nil {
					continue
				}
				t := d.counter.Topology()
				if k := t.Domain(n); k >= 0 && len(t.Members(k)) > 1 {
					for _, m := range t.Members(k) {
						if m != slot {
							s.redo(m)
						}
					}
				}
			}
		}
	}
	if len(s.list) > 64 && len(s.list) > 2*len(s.nodes) {
		s.build() // too many groups have emptied
	}
}

func (s *shape) redo(slot int32) {
	n := s.e.At(int(slot))
	if n == nil || int(slot) >= len(s.nodes) {
		return // it came or went: the epoch has moved
	}
	delete(s.victims, slot)
	s.leave(slot)
	s.evaluate(n, &s.nodes[slot])
	s.besidePromised(n)
	s.enter(n)
}
