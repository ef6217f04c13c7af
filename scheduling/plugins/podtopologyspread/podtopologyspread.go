// Package podtopologyspread keeps the pods that a constraint selects even over
// the domains of a topology key, where the constraint says DoNotSchedule.
package podtopologyspread

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "PodTopologySpread" }

// Wakes: domains and counts change with nodes and pods.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.NodeTaints | plugin.PodRemoved | plugin.PodPlaced
}

var (
	refused = &plugin.Reason{Text: "node(s) didn't match pod topology spread constraints"}
	noLabel = &plugin.Reason{Text: "node(s) didn't match pod topology spread constraints (missing required label)"}
	invalid = &plugin.Reason{Text: "Pod's topology spread constraint has an invalid selector"}
)

type constraint struct {
	key     string
	maxSkew int64
	self    int64 // 1 when the pod itself is selected
	min     int64 // pods in the emptiest domain
	count   map[string]int64
}

// Prepare concerns pods with hard constraints.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	var hard []corev1.TopologySpreadConstraint
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			hard = append(hard, c)
		}
	}
	if len(hard) == 0 {
		return nil, nil
	}
	cs := make([]constraint, 0, len(hard))
	for i := range hard {
		sel, err := selector(&hard[i], p.Pod)
		if err != nil {
			return nil, invalid
		}
		cs = append(cs, count(p, v, &hard[i], hard, sel))
	}
	return func(n *cluster.Node) *plugin.Reason {
		for i := range cs {
			c := &cs[i]
			domain, ok := n.Labels[c.key]
			if !ok {
				return noLabel
			}
			if c.count[domain]+c.self-c.min > c.maxSkew {
				return refused
			}
		}
		return nil
	}, nil
}

// selector is the constraint's, narrowed by the values that the pod has of
// matchLabelKeys.
func selector(c *corev1.TopologySpreadConstraint, p *corev1.Pod) (labels.Selector, error) {
	s, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return nil, err
	}
	for _, k := range c.MatchLabelKeys {
		if val, ok := p.Labels[k]; ok {
			r, err := labels.NewRequirement(k, "=", []string{val})
			if err != nil {
				return nil, err
			}
			s = s.Add(*r)
		}
	}
	return s, nil
}

func count(p *cluster.Pod, v plugin.View, c *corev1.TopologySpreadConstraint, all []corev1.TopologySpreadConstraint, sel labels.Selector) constraint {
	out := constraint{key: c.TopologyKey, maxSkew: int64(c.MaxSkew), count: map[string]int64{}}
	if sel.Matches(labels.Set(p.Labels)) {
		out.self = 1
	}
	for _, n := range v.Nodes() {
		if !hasAll(n, all) || !eligible(p, n, c) {
			continue
		}
		var k int64
		for _, q := range n.Pods {
			if q.Namespace == p.Namespace && q.DeletionTimestamp == nil && sel.Matches(labels.Set(q.Labels)) {
				k++
			}
		}
		out.count[n.Labels[c.TopologyKey]] += k
	}
	out.min = math.MaxInt64
	for _, k := range out.count {
		out.min = min(out.min, k)
	}
	if len(out.count) == 0 || c.MinDomains != nil && len(out.count) < int(*c.MinDomains) {
		out.min = 0
	}
	return out
}

func hasAll(n *cluster.Node, all []corev1.TopologySpreadConstraint) bool {
	for i := range all {
		if _, ok := n.Labels[all[i].TopologyKey]; !ok {
			return false
		}
	}
	return true
}

// eligible says whether the node's domain counts for the pod.
func eligible(p *cluster.Pod, n *cluster.Node, c *corev1.TopologySpreadConstraint) bool {
	if c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor {
		if ok, err := p.Affinity.Match(n.Node); err != nil || !ok {
			return false
		}
	}
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		hard := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
		if _, found := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, hard, false); found {
			return false
		}
	}
	return true
}
