package cluster

import (
	"math"
	"slices"
)

// Topology divides the nodes into domains by the value of one label.
type Topology struct {
	Key     string
	epoch   uint64
	of      []int32   // domain by slot; -1: no label
	members [][]int32 // slots by domain
	values  map[string]int32
}

// Topology of a label key; it is up to date until the next change of the cluster.
func (c *Cluster) Topology(key string) *Topology {
	t := c.topologies[key]
	if t == nil {
		t = &Topology{Key: key}
		c.topologies[key] = t
	}
	if t.epoch != c.epoch {
		t.build(c)
	}
	return t
}

func (t *Topology) build(c *Cluster) {
	t.epoch = c.epoch
	t.of, t.members, t.values = make([]int32, len(c.slots)), nil, map[string]int32{}
	for i, n := range c.slots {
		t.of[i] = -1
		if n == nil || n.Node == nil {
			continue
		}
		v, ok := n.Labels[t.Key]
		if !ok {
			continue
		}
		d, ok := t.values[v]
		if !ok {
			d = int32(len(t.members))
			t.values[v] = d
			t.members = append(t.members, nil)
		}
		t.of[i] = d
		t.members[d] = append(t.members[d], int32(i))
	}
}

// Domain of a node: a small number, or -1 where it has no such label.
func (t *Topology) Domain(n *Node) int {
	if int(n.slot) >= len(t.of) {
		return -1
	}
	return int(t.of[n.slot])
}

// Domains is how many there are.
func (t *Topology) Domains() int { return len(t.members) }

// Members are the slots of the nodes in a domain; the slice is the topology's own.
func (t *Topology) Members(domain int) []int32 { return t.members[domain] }

// CounterSpec says what a Counter counts.
type CounterSpec struct {
	// ID is equal for specs that count the same: they share one counter.
	ID string
	// Key is the topology key over whose domains is counted.
	Key string
	// LabelKeys are the labels of pods that Weigh looks at.
	LabelKeys []string
	// Weigh is what each pod of a kind adds; 0 for one that does not count.
	Weigh func(*Kind) int64
	// Eligible says which nodes count; nil: all. It may look at labels and taints.
	Eligible func(*Node) bool
}

// Counter adds up pods by domain.
type Counter struct {
	spec     CounterSpec
	cluster  *Cluster
	users    int
	epoch    uint64
	topology *Topology
	counts   []int64 // by domain
	nodes    []int32 // eligible nodes by domain
	eligible []bool  // by slot; nil: all
	total    int64
	domains  int // with an eligible node
	low      int64
	atLow    int // domains with low
}

// Counter finds or makes one. Its user gives it back with Release.
func (c *Cluster) Counter(s CounterSpec) *Counter {
	x := c.counters[s.ID]
	if x == nil {
		c.LookAt(s.LabelKeys...)
		x = &Counter{spec: s, cluster: c}
		c.counters[s.ID] = x
		for _, k := range c.kinds {
			k.match(x)
		}
	}
	x.users++
	x.refresh()
	return x
}

// Release gives a counter back; the last user's ends it.
func (c *Cluster) Release(x *Counter) {
	if x.users--; x.users > 0 {
		return
	}
	delete(c.counters, x.spec.ID)
	for _, k := range c.kinds {
		k.counters = slices.DeleteFunc(k.counters, func(w weighted) bool { return w.counter == x })
	}
}

// Topology over whose domains it counts.
func (x *Counter) Topology() *Topology { return x.topology }

// Refresh brings counters up to date with the epoch. Between that and the next
// change of the epoch they are kept by every change.
func (c *Cluster) Refresh(xs []*Counter) {
	for _, x := range xs {
		x.refresh()
	}
}

// In is the count in the node's domain; ok is false where the node has none.
func (x *Counter) In(n *Node) (count int64, ok bool) {
	d := x.topology.Domain(n)
	if d < 0 {
		return 0, false
	}
	return x.counts[d], true
}

// Eligible says whether what stands on the node is counted.
func (x *Counter) Eligible(n *Node) bool { return x.eligible == nil || x.eligible[n.slot] }

// Total over all domains.
func (x *Counter) Total() int64 { return x.total }

// Domains is how many have a node that counts.
func (x *Counter) Domains() int { return x.domains }

// Least is the smallest count of a domain that has a node that counts; 0 where
// there is none.
func (x *Counter) Least() int64 {
	if x.domains == 0 {
		return 0
	}
	if x.atLow == 0 {
		x.findLow()
	}
	return x.low
}

func (x *Counter) findLow() {
	x.low, x.atLow = math.MaxInt64, 0
	for d, k := range x.counts {
		switch {
		case x.nodes[d] == 0 || k > x.low:
		case k < x.low:
			x.low, x.atLow = k, 1
		default:
			x.atLow++
		}
	}
}

func (x *Counter) add(n *Node, by int64) {
	if x.epoch != x.cluster.epoch {
		return // counted anew when it is asked next
	}
	d := x.topology.Domain(n)
	if d < 0 || !x.Eligible(n) {
		return
	}
	was := x.counts[d]
	now := was + by
	x.counts[d] = now
	x.total += by
	if was == x.low {
		x.atLow--
	}
	switch {
	case now < x.low:
		x.low, x.atLow = now, 1
	case now == x.low:
		x.atLow++
	}
}

// refresh counts anew after a change of the epoch.
func (x *Counter) refresh() {
	c := x.cluster
	if x.epoch == c.epoch {
		return
	}
	x.topology = c.Topology(x.spec.Key)
	x.epoch, x.total, x.domains = c.epoch, 0, 0
	x.counts, x.nodes = make([]int64, x.topology.Domains()), make([]int32, x.topology.Domains())
	x.eligible = nil
	if x.spec.Eligible != nil {
		x.eligible = make([]bool, len(c.slots))
	}
	for i, n := range c.slots {
		if n == nil || n.Node == nil {
			continue
		}
		d := x.topology.of[i]
		if d < 0 || x.spec.Eligible != nil && !x.spec.Eligible(n) {
			continue
		}
		if x.eligible != nil {
			x.eligible[i] = true
		}
		if x.nodes[d]++; x.nodes[d] == 1 {
			x.domains++
		}
	}
	for _, k := range c.kinds {
		for _, w := range k.counters {
			if w.counter != x {
				continue
			}
			for slot, count := range k.nodes {
				if d := x.topology.of[slot]; d >= 0 && (x.eligible == nil || x.eligible[slot]) {
					x.counts[d] += w.weight * int64(count)
					x.total += w.weight * int64(count)
				}
			}
		}
	}
	x.atLow = 0
	x.findLow()
}
