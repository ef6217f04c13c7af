// Package podtopologyspread keeps the pods that a constraint selects even over
// the domains of a topology key: where the constraint says DoNotSchedule it
// refuses nodes, where it says ScheduleAnyway it prefers the emptier domains. Pods
// without constraints are spread, by preference, with those of the same Service or
// controller.
package podtopologyspread

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "PodTopologySpread"

// Plugin is the filter.
type Plugin struct {
	// Defaults are the constraints of pods that have none; their selectors are
	// those of the pods' owners.
	Defaults []corev1.TopologySpreadConstraint
}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: domains and counts change with nodes and pods.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.NodeTaints | plugin.PodRemoved | plugin.PodPlaced
}

// Helps: the pod that came or went is one of those that are counted.
func (f Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	if c.Pod == nil || len(p.Spec.TopologySpreadConstraints) == 0 {
		return true
	}
	return c.Pod.Namespace == p.Namespace && slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(x corev1.TopologySpreadConstraint) bool {
		s, err := selector(&x, p.Pod)
		return err == nil && s.Matches(labels.Set(c.Pod.Labels))
	})
}

var (
	refused = plugin.Refuse(name, "node(s) didn't match pod topology spread constraints")
	noLabel = plugin.RefuseFinal(name, "node(s) didn't match pod topology spread constraints (missing required label)")
)

// constraint is one that has been read, with the count of the pods it selects.
type constraint struct {
	maxSkew    int64
	minDomains int
	self       int64 // 1 when the pod itself is selected
	hostname   bool
	count      *cluster.Counter
}

// read returns the constraints of the pod, or the defaults, of one kind.
func read(p *cluster.Pod, v plugin.View, defaults []corev1.TopologySpreadConstraint, what corev1.UnsatisfiableConstraintAction, needAllKeys bool) ([]constraint, error) {
	from := p.Spec.TopologySpreadConstraints
	var owner labels.Selector
	if len(from) == 0 {
		if from = defaults; len(from) == 0 {
			return nil, nil
		}
		if owner = v.OwnerSelector(p.Pod); owner == nil {
			return nil, nil
		}
	}
	var keys []string
	var use []*corev1.TopologySpreadConstraint
	for i := range from {
		if from[i].WhenUnsatisfiable == what {
			use = append(use, &from[i])
			keys = append(keys, from[i].TopologyKey)
		}
	}
	var out []constraint
	for _, c := range use {
		sel := owner
		if sel == nil {
			var err error
			if sel, err = selector(c, p.Pod); err != nil {
				return nil, err
			}
		}
		x := constraint{maxSkew: int64(c.MaxSkew), minDomains: 1, hostname: c.TopologyKey == corev1.LabelHostname}
		if c.MinDomains != nil {
			x.minDomains = int(*c.MinDomains)
		}
		if sel.Matches(labels.Set(p.Labels)) {
			x.self = 1
		}
		var all []string
		if needAllKeys {
			all = keys
		}
		x.count = counter(p, v, c, sel, all)
		out = append(out, x)
	}
	return out, nil
}

// selector is the constraint's, narrowed by the values that the pod has of
// matchLabelKeys.
func selector(c *corev1.TopologySpreadConstraint, p *corev1.Pod) (labels.Selector, error) {
	s, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("selector of a topology spread constraint: %w", err)
	}
	for _, k := range c.MatchLabelKeys {
		if val, ok := p.Labels[k]; ok {
			r, err := labels.NewRequirement(k, "=", []string{val})
			if err != nil {
				return nil, fmt.Errorf("matchLabelKeys of a topology spread constraint: %w", err)
			}
			s = s.Add(*r)
		}
	}
	return s, nil
}

func honours(p *corev1.NodeInclusionPolicy, byDefault bool) bool {
	if p == nil {
		return byDefault
	}
	return *p == corev1.NodeInclusionPolicyHonor
}

func counter(p *cluster.Pod, v plugin.View, c *corev1.TopologySpreadConstraint, sel labels.Selector, all []string) *cluster.Counter {
	namespace := p.Namespace
	spec := cluster.CounterSpec{Key: c.TopologyKey, LabelKeys: cluster.SelectorKeys(sel),
		Weigh: func(k *cluster.Kind) int64 {
			if k.Namespace == namespace && !k.Terminating && sel.Matches(k.Labels) {
				return 1
			}
			return 0
		}}
	id := []string{"spread", c.TopologyKey, namespace, sel.String(), strings.Join(all, ",")}
	affinity, taints := honours(c.NodeAffinityPolicy, true), honours(c.NodeTaintsPolicy, false)
	if affinity {
		id = append(id, p.NodeTerms())
	}
	if taints {
		id = append(id, "taints", p.TolerationsText())
	}
	if affinity || taints || len(all) > 1 {
		spec.Eligible = func(n *cluster.Node) bool { return eligible(p, n, all, affinity, taints) }
	}
	spec.ID = strings.Join(id, "|")
	return v.Counter(spec)
}

// eligible says whether the node's domain counts for the pod.
func eligible(p *cluster.Pod, n *cluster.Node, all []string, affinity, taints bool) bool {
	for _, k := range all {
		if _, ok := n.Labels[k]; !ok {
			return false
		}
	}
	if affinity {
		if ok, err := p.Affinity.Match(n.Node); err != nil || !ok {
			return false
		}
	}
	if taints {
		hard := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
		if _, found := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, hard, false); found {
			return false
		}
	}
	return true
}

func counters(cs []constraint) []*cluster.Counter {
	out := make([]*cluster.Counter, len(cs))
	for i := range cs {
		out[i] = cs[i].count
	}
	return out
}

// Prepare concerns pods with hard constraints.
func (f Plugin) Prepare(p *cluster.Pod, v plugin.View) (*plugin.Check, *plugin.Reason) {
	cs, err := read(p, v, f.Defaults, corev1.DoNotSchedule, true)
	if err != nil {
		return nil, plugin.RefuseFinal(name, err.Error())
	}
	if len(cs) == 0 {
		return nil, nil
	}
	return &plugin.Check{Over: counters(cs), Fits: func(n *cluster.Node) *plugin.Reason {
		for i := range cs {
			c := &cs[i]
			k, ok := c.count.In(n)
			if !ok {
				return noLabel
			}
			least := c.count.Least()
			if c.count.Domains() < c.minDomains {
				least = 0
			}
			if k+c.self-least > c.maxSkew {
				return refused
			}
		}
		return nil
	}}, nil
}

// Score prefers the domains with the fewest of the selected pods.
type Score struct {
	// Defaults are as in Plugin.
	Defaults []corev1.TopologySpreadConstraint
	// System says that Defaults are built in and not the operator's: nodes that lack
	// one of their keys are spread over by the others.
	System bool
}

// Name of the score.
func (Score) Name() string { return name }

// SystemDefaults are kube-scheduler's: even over hosts, and rather more so over
// zones.
func SystemDefaults() []corev1.TopologySpreadConstraint {
	return []corev1.TopologySpreadConstraint{
		{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
		{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
	}
}

// Prepare concerns pods with soft constraints, and those with none that belong to
// a Service or a controller.
func (s Score) Prepare(p *cluster.Pod, v plugin.View) *plugin.Rating {
	needAll := len(p.Spec.TopologySpreadConstraints) > 0 || !s.System
	cs, err := read(p, v, s.Defaults, corev1.ScheduleAnyway, needAll)
	if err != nil || len(cs) == 0 {
		return nil // what cannot be read prefers nothing
	}
	return &plugin.Rating{Over: counters(cs), Scale: scale, Of: func(n *cluster.Node) int64 {
		var sum float64
		for i := range cs {
			c := &cs[i]
			k, ok := c.count.In(n)
			if !ok {
				if needAll {
					return plugin.NoValue
				}
				continue
			}
			// A key with more domains has fewer pods in each; the logarithm makes up
			// for it. kube-scheduler's formula.
			sum += float64(k)*math.Log(float64(c.count.Domains()+2)) + float64(c.maxSkew-1)
		}
		return int64(math.Round(sum))
	}}
}

func scale(v, lowest, highest int64) int64 {
	if highest == 0 {
		return plugin.MaxScore
	}
	return plugin.MaxScore * (highest + lowest - v) / highest
}
