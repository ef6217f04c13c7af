// Package interpodaffinity holds a pod to, or keeps it off, the domains of other
// pods, by required affinity and anti-affinity: its own, and the anti-affinity
// of pods that are placed already. It prefers by the preferences of both.
package interpodaffinity

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "InterPodAffinity"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: pods come and go, nodes and namespaces are labelled.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.PodRemoved | plugin.PodPlaced | plugin.NamespaceLabels
}

// Helps: a pod that came is one that the pod wants to be near; one that went had
// terms, or was one that the pod wants to be away from.
func (Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	if c.Pod == nil {
		return true
	}
	match := func(ts []cluster.Term) bool {
		return slices.ContainsFunc(ts, func(t cluster.Term) bool { return t.MayMatch(c.Pod.Namespace, c.Pod.Labels) })
	}
	switch c.Kind {
	case plugin.PodPlaced:
		return p.Terms != nil && match(p.Terms.Near)
	case plugin.PodRemoved:
		return c.Pod.Terms != nil && len(c.Pod.Terms.Away) > 0 || p.Terms != nil && match(p.Terms.Away)
	}
	return true
}

var (
	noAffinity   = plugin.RefuseFinal(name, "node(s) didn't match pod affinity rules")
	antiAffinity = plugin.Refuse(name, "node(s) didn't match pod anti-affinity rules")
	existingAnti = plugin.Refuse(name, "node(s) didn't satisfy existing pods anti-affinity rules")
)

// Prepare concerns pods with terms, and every pod as soon as a placed one has a
// required anti-affinity.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (*plugin.Check, *plugin.Reason) {
	if p.Invalid != nil {
		return nil, plugin.RefuseFinal(name, fmt.Sprintf("Pod's affinity cannot be read: %v", p.Invalid))
	}
	own, ownText := v.LabelsInUse(p.Labels)
	var near, away, theirs []*cluster.Counter
	first := func() bool { return false }
	if t := p.Terms; t != nil {
		near = nearCounters(t.Near, v)
		if len(near) > 0 && all(t.Near, p.Namespace, own, v) {
			// The first pod of a group that wants to be near itself may go anywhere.
			first = func() bool { return !slices.ContainsFunc(near, func(c *cluster.Counter) bool { return c.Total() > 0 }) }
		}
		for i := range t.Away {
			t := &t.Away[i]
			away = append(away, v.Counter(cluster.CounterSpec{ID: "away|" + t.ID(), Key: t.TopologyKey, LabelKeys: t.Keys(),
				Weigh: func(k *cluster.Kind) int64 { return one(t.Matches(k.Namespace, k.Labels, v)) }}))
		}
	}
	for _, key := range v.AwayKeys() {
		theirs = append(theirs, v.Counter(cluster.CounterSpec{ID: "held|" + key + "|" + p.Namespace + "|" + ownText, Key: key,
			Weigh: func(k *cluster.Kind) int64 {
				if k.Terms == nil {
					return 0
				}
				return matching(k.Terms.Away, key, p.Namespace, own, v, func(*cluster.Term) int64 { return 1 })
			}}))
	}
	if len(near)+len(away)+len(theirs) == 0 {
		return nil, nil
	}
	return &plugin.Check{Over: slices.Concat(near, away, theirs), Fits: func(n *cluster.Node) *plugin.Reason {
		for _, c := range near {
			if k, ok := c.In(n); !ok || k == 0 && !first() {
				return noAffinity
			}
		}
		for _, c := range away {
			if k, _ := c.In(n); k > 0 {
				return antiAffinity
			}
		}
		for _, c := range theirs {
			if k, _ := c.In(n); k > 0 {
				return existingAnti
			}
		}
		return nil
	}}, nil
}

// nearCounters count, for each topology key of the terms, the pods that all of
// them match.
func nearCounters(terms []cluster.Term, v plugin.View) []*cluster.Counter {
	var out []*cluster.Counter
	var ids, labelKeys, keys []string
	for i := range terms {
		ids = append(ids, terms[i].ID())
		labelKeys = append(labelKeys, terms[i].Keys()...)
		if !slices.Contains(keys, terms[i].TopologyKey) {
			keys = append(keys, terms[i].TopologyKey)
		}
	}
	for _, key := range keys {
		out = append(out, v.Counter(cluster.CounterSpec{ID: "near|" + key + "|" + strings.Join(ids, ";"), Key: key, LabelKeys: labelKeys,
			Weigh: func(k *cluster.Kind) int64 { return one(all(terms, k.Namespace, k.Labels, v)) }}))
	}
	return out
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func all(ts []cluster.Term, namespace string, l labels.Set, v plugin.View) bool {
	for i := range ts {
		if !ts[i].Matches(namespace, l, v) {
			return false
		}
	}
	return true
}

// matching adds up the terms over the key that match a pod.
func matching(ts []cluster.Term, key, namespace string, l labels.Set, v plugin.View, worth func(*cluster.Term) int64) int64 {
	var sum int64
	for i := range ts {
		if t := &ts[i]; t.TopologyKey == key && t.Matches(namespace, l, v) {
			sum += worth(t)
		}
	}
	return sum
}

// Score adds up, over the pods in a node's domains, the weights of the preferences
// that the pod has of them and they of it.
type Score struct {
	// HardWeight is what a placed pod's required affinity to the pod counts, 0 to
	// 100; kube-scheduler's default is 1.
	HardWeight int64
	// IgnoreExisting leaves out what placed pods prefer where the pod itself has
	// no preference.
	IgnoreExisting bool
}

// Name of the score.
func (Score) Name() string { return name }

// Prepare concerns pods with preferences, and every pod as soon as a placed one
// has some.
func (s Score) Prepare(p *cluster.Pod, v plugin.View) *plugin.Rating {
	own, ownText := v.LabelsInUse(p.Labels)
	var mine cluster.Terms
	if p.Terms != nil {
		mine = *p.Terms
	}
	var keys, labelKeys, ids []string
	for i, l := range [][]cluster.Term{mine.PreferNear, mine.PreferAway} {
		for j := range l {
			keys = append(keys, l[j].TopologyKey)
			labelKeys = append(labelKeys, l[j].Keys()...)
			ids = append(ids, fmt.Sprint(i, l[j].ID()))
		}
	}
	if len(keys) == 0 && s.IgnoreExisting {
		return nil
	}
	keys = append(keys, v.PreferenceKeys()...)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	weight := func(t *cluster.Term) int64 { return t.Weight }
	var over []*cluster.Counter
	for _, key := range keys {
		over = append(over, v.Counter(cluster.CounterSpec{
			ID: fmt.Sprintf("prefer|%s|%s|%s|%s|%d", key, p.Namespace, ownText, strings.Join(ids, ";"), s.HardWeight), Key: key, LabelKeys: labelKeys,
			Weigh: func(k *cluster.Kind) int64 {
				w := matching(mine.PreferNear, key, k.Namespace, k.Labels, v, weight) - matching(mine.PreferAway, key, k.Namespace, k.Labels, v, weight)
				if t := k.Terms; t != nil {
					w += matching(t.PreferNear, key, p.Namespace, own, v, weight) - matching(t.PreferAway, key, p.Namespace, own, v, weight)
					w += s.HardWeight * matching(t.Near, key, p.Namespace, own, v, func(*cluster.Term) int64 { return 1 })
				}
				return w
			}}))
	}
	if len(over) == 0 {
		return nil
	}
	return &plugin.Rating{Over: over, Scale: plugin.Between, Of: func(n *cluster.Node) int64 {
		var sum int64
		for _, c := range over {
			k, _ := c.In(n)
			sum += k
		}
		return sum
	}}
}
