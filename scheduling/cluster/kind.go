package cluster

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Kind is a set of pods on nodes that no selector in use tells apart.
type Kind struct {
	Namespace string
	Labels    labels.Set // those that a selector in use looks at
	Terms     *Terms     // nil where they have none
	// Terminating pods are being deleted: they still count for affinity, but not
	// for spreading.
	Terminating bool

	id       string
	nodes    map[int32]int32 // how many, by slot
	counters []weighted
}

type weighted struct {
	counter *Counter
	weight  int64
}

// LabelsInUse are those of the labels that a selector in use looks at, and a text
// that is equal for equal ones.
func (c *Cluster) LabelsInUse(l labels.Set) (labels.Set, string) {
	var keys []string
	for k := range l {
		if c.labelKeys[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out := make(labels.Set, len(keys))
	var b strings.Builder
	for _, k := range keys {
		out[k] = l[k]
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(l[k])
		b.WriteByte(',')
	}
	return out, b.String()
}

// LookAt makes selectors over these label keys possible: pods that differ in them
// are told apart from now on.
func (c *Cluster) LookAt(keys ...string) {
	grown := false
	for _, k := range keys {
		if !c.labelKeys[k] {
			c.labelKeys[k], grown = true, true
		}
	}
	if grown {
		c.rekind()
	}
}

// LookAtTerms does so for the terms of a pod.
func (c *Cluster) LookAtTerms(t *Terms) {
	if t != nil {
		t.each(func(t *Term) { c.LookAt(t.Keys()...) })
	}
}

// kindOf finds or makes the kind of a pod.
func (c *Cluster) kindOf(p *Pod) *Kind {
	set, text := c.LabelsInUse(p.Labels)
	var b strings.Builder
	b.WriteString(p.Namespace)
	b.WriteByte('/')
	b.WriteString(text)
	if p.DeletionTimestamp != nil {
		b.WriteByte('!')
	}
	if p.Terms != nil {
		for i, l := range [][]Term{p.Terms.Near, p.Terms.Away, p.Terms.PreferNear, p.Terms.PreferAway} {
			b.WriteByte(byte('0' + i))
			for j := range l {
				b.WriteString(l[j].id)
				b.WriteByte(';')
			}
		}
	}
	id := b.String()
	k := c.kinds[id]
	if k == nil {
		k = &Kind{Namespace: p.Namespace, Labels: set, Terms: p.Terms, Terminating: p.DeletionTimestamp != nil, id: id, nodes: map[int32]int32{}}
		for _, x := range c.counters {
			k.match(x)
		}
		c.kinds[id] = k
	}
	return k
}

func (k *Kind) match(x *Counter) {
	if w := x.spec.Weigh(k); w != 0 {
		k.counters = append(k.counters, weighted{x, w})
	}
}

// enter counts a pod for its kind and so for every counter.
func (c *Cluster) enter(p *Pod, n *Node) {
	for _, claim := range p.Claims {
		c.claims[claim]++
	}
	p.kind = c.kindOf(p)
	p.kind.nodes[n.slot]++
	for _, w := range p.kind.counters {
		w.counter.add(n, w.weight)
	}
}

func (c *Cluster) leave(p *Pod, n *Node) {
	for _, claim := range p.Claims {
		if c.claims[claim]--; c.claims[claim] == 0 {
			delete(c.claims, claim)
		}
	}
	k := p.kind
	p.kind = nil
	if k.nodes[n.slot]--; k.nodes[n.slot] == 0 {
		delete(k.nodes, n.slot)
	}
	for _, w := range k.counters {
		w.counter.add(n, -w.weight)
	}
	if len(k.nodes) == 0 {
		delete(c.kinds, k.id)
	}
}

// The sets of topology keys that are kept of terms.
const (
	requiredAway = 0
	otherTerms   = 1
)

// countTerms keeps the sets for a pod that came or went. A supposition does not:
// what it takes away for a moment others must still be held to.
func (c *Cluster) countTerms(t *Terms, by int) {
	if t == nil {
		return
	}
	if by > 0 {
		c.LookAtTerms(t)
	}
	count := func(set int, l []Term) {
		for i := range l {
			m, key := c.termKeys[set], l[i].TopologyKey
			was := m[key]
			if m[key] = was + by; m[key] == 0 {
				delete(m, key)
			}
			if was == 0 {
				c.epoch++ // pods must be held to a key that they were not
			}
		}
	}
	count(requiredAway, t.Away)
	count(otherTerms, t.Near)
	count(otherTerms, t.PreferNear)
	count(otherTerms, t.PreferAway)
}

// AwayKeys are the topology keys of required anti-affinity of pods on nodes.
func (c *Cluster) AwayKeys() []string { return sortedKeys(c.termKeys[requiredAway]) }

// PreferenceKeys are the topology keys of the other terms of pods on nodes.
func (c *Cluster) PreferenceKeys() []string { return sortedKeys(c.termKeys[otherTerms]) }

func sortedKeys(m map[string]int) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// rekind tells all pods apart anew.
func (c *Cluster) rekind() {
	c.epoch++
	c.kinds = map[string]*Kind{}
	for _, n := range c.nodes {
		for _, p := range n.Pods {
			p.kind = c.kindOf(p)
			p.kind.nodes[n.slot]++
		}
	}
}

// rematch asks every counter anew which kinds it counts.
func (c *Cluster) rematch() {
	c.epoch++
	for _, k := range c.kinds {
		k.counters = nil
		for _, x := range c.counters {
			k.match(x)
		}
	}
}
