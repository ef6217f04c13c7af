// Package interpodaffinity holds a pod to, or keeps it off, the domains of other
// pods, by required affinity and anti-affinity: its own, and the anti-affinity
// of pods that are placed already.
package interpodaffinity

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"slices"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "InterPodAffinity" }

// Wakes: pods come and go, nodes and namespaces are labelled.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.PodRemoved | plugin.PodPlaced | plugin.NamespaceLabels
}

var (
	noAffinity   = &plugin.Reason{Text: "node(s) didn't match pod affinity rules"}
	antiAffinity = &plugin.Reason{Text: "node(s) didn't match pod anti-affinity rules"}
	existingAnti = &plugin.Reason{Text: "node(s) didn't satisfy existing pods anti-affinity rules"}
	invalid      = &plugin.Reason{Text: "Pod's affinity has an invalid selector"}
)

// domain is a value of a topology key.
type domain struct{ key, value string }

// term is an affinity term with its selectors parsed.
type term struct {
	key        string
	namespaces []string
	nsSelector labels.Selector // nil: namespaces alone
	selector   labels.Selector
}

func parse(owner *corev1.Pod, terms []corev1.PodAffinityTerm) ([]term, error) {
	out := make([]term, 0, len(terms))
	for i := range terms {
		t := &terms[i]
		sel, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		if err != nil {
			return nil, err
		}
		x := term{key: t.TopologyKey, namespaces: t.Namespaces, selector: sel}
		if t.NamespaceSelector != nil {
			if x.nsSelector, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
				return nil, err
			}
		} else if len(t.Namespaces) == 0 {
			x.namespaces = []string{owner.Namespace}
		}
		out = append(out, x)
	}
	return out, nil
}

func (t *term) matches(p *corev1.Pod, v plugin.View) bool {
	in := slices.Contains(t.namespaces, p.Namespace)
	if !in && t.nsSelector != nil {
		in = t.nsSelector.Matches(v.NamespaceLabels(p.Namespace))
	}
	return in && t.selector.Matches(labels.Set(p.Labels))
}

func (t *term) domain(n *cluster.Node) (domain, bool) {
	val, ok := n.Labels[t.key]
	return domain{t.key, val}, ok
}

func required(p *corev1.Pod) (affinity, anti []corev1.PodAffinityTerm) {
	a := p.Spec.Affinity
	if a == nil {
		return nil, nil
	}
	if a.PodAffinity != nil {
		affinity = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if a.PodAntiAffinity != nil {
		anti = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return affinity, anti
}

// Prepare concerns pods with terms, and every pod as soon as a placed one has a
// required anti-affinity.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	affTerms, antiTerms := required(p.Pod)
	aff, err := parse(p.Pod, affTerms)
	if err != nil {
		return nil, invalid
	}
	anti, err := parse(p.Pod, antiTerms)
	if err != nil {
		return nil, invalid
	}
	near, away, others := map[domain]bool{}, map[domain]bool{}, map[domain]bool{}
	anyNear := false
	for _, n := range v.Nodes() {
		for _, q := range n.Pods {
			if _, theirs := required(q.Pod); len(theirs) > 0 {
				ts, err := parse(q.Pod, theirs)
				if err != nil {
					continue // it was validated when it was made; it cannot bind others
				}
				mark(ts, p.Pod, n, v, others)
			}
			mark(anti, q.Pod, n, v, away)
			if len(aff) > 0 && all(aff, q.Pod, v) {
				anyNear = true
				mark(aff, q.Pod, n, v, near)
			}
		}
	}
	if len(aff) == 0 && len(anti) == 0 && len(others) == 0 {
		return nil, nil
	}
	// The first pod of a group that wants to be near itself may go anywhere.
	first := len(aff) > 0 && !anyNear && all(aff, p.Pod, v)
	return func(n *cluster.Node) *plugin.Reason {
		for i := range aff {
			d, ok := aff[i].domain(n)
			if !ok || !near[d] && !first {
				return noAffinity
			}
		}
		for i := range anti {
			if d, ok := anti[i].domain(n); ok && away[d] {
				return antiAffinity
			}
		}
		for d := range others {
			if val, ok := n.Labels[d.key]; ok && val == d.value {
				return existingAnti
			}
		}
		return nil
	}, nil
}

// mark notes the node's domain for each term that matches the pod.
func mark(ts []term, p *corev1.Pod, n *cluster.Node, v plugin.View, to map[domain]bool) {
	for i := range ts {
		if d, ok := ts[i].domain(n); ok && ts[i].matches(p, v) {
			to[d] = true
		}
	}
}

func all(ts []term, p *corev1.Pod, v plugin.View) bool {
	for i := range ts {
		if !ts[i].matches(p, v) {
			return false
		}
	}
	return true
}
