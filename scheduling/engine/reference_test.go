package engine_test

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// world is a cluster as the reference sees it: API objects in lists, nothing
// worked out. Pods are placed by their spec.nodeName.
type world struct {
	nodes      map[string]*corev1.Node
	pods       map[string]*corev1.Pod
	namespaces map[string]labels.Set
}

// fits says, as slowly and plainly as can be, whether p may go to n.
func (w *world) fits(p *corev1.Pod, n *corev1.Node) bool {
	return w.roomy(p, n) && tolerable(p, n) && selects(p, n) && w.portsFree(p, n) && w.affine(p, n) && w.even(p, n)
}

func (w *world) on(n *corev1.Node) (out []*corev1.Pod) {
	for _, q := range w.pods {
		if q.Spec.NodeName == n.Name {
			out = append(out, q)
		}
	}
	return out
}

func (w *world) roomy(p *corev1.Pod, n *corev1.Node) bool {
	all := append(w.on(n), p)
	for _, name := range []corev1.ResourceName{"cpu", "memory", "example.com/gpu"} {
		sum := resource.Quantity{}
		for _, q := range all {
			sum.Add(q.Spec.Containers[0].Resources.Requests[name])
		}
		want, has := p.Spec.Containers[0].Resources.Requests[name], n.Status.Allocatable[name]
		if !want.IsZero() && sum.Cmp(has) > 0 {
			return false
		}
	}
	pods := n.Status.Allocatable["pods"]
	return int64(len(all)) <= pods.Value()
}

func tolerable(p *corev1.Pod, n *corev1.Node) bool {
	taints := n.Spec.Taints
	if n.Spec.Unschedulable {
		taints = append(slices.Clone(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, t := range taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool {
			return (o.Effect == "" || o.Effect == t.Effect) && (o.Key == t.Key && (o.Operator == corev1.TolerationOpExists || o.Value == t.Value) || o.Key == "" && o.Operator == corev1.TolerationOpExists)
		}) {
			return false
		}
	}
	return true
}

func selects(p *corev1.Pod, n *corev1.Node) bool {
	for k, v := range p.Spec.NodeSelector {
		if n.Labels[k] != v {
			return false
		}
	}
	return true
}

func (w *world) portsFree(p *corev1.Pod, n *corev1.Node) bool {
	for _, q := range w.on(n) {
		for _, a := range q.Spec.Containers[0].Ports {
			for _, b := range p.Spec.Containers[0].Ports {
				if a.HostPort == b.HostPort && (a.HostIP == b.HostIP || a.HostIP == "" || b.HostIP == "") {
					return false
				}
			}
		}
	}
	return true
}

func selector(s *metav1.LabelSelector) labels.Selector {
	x, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err)
	}
	return x
}

// speaks says whether a term of owner is about q.
func (w *world) speaks(owner *corev1.Pod, t *corev1.PodAffinityTerm, q *corev1.Pod) bool {
	in := slices.Contains(t.Namespaces, q.Namespace) || len(t.Namespaces) == 0 && t.NamespaceSelector == nil && q.Namespace == owner.Namespace ||
		t.NamespaceSelector != nil && selector(t.NamespaceSelector).Matches(w.namespaces[q.Namespace])
	return in && selector(t.LabelSelector).Matches(labels.Set(q.Labels))
}

func near(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func away(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func together(a, b *corev1.Node, key string) bool {
	x, ok := a.Labels[key]
	y, ok2 := b.Labels[key]
	return ok && ok2 && x == y
}

func (w *world) affine(p *corev1.Pod, n *corev1.Node) bool {
	all := func(q *corev1.Pod) bool {
		for i := range near(p) {
			if !w.speaks(p, &near(p)[i], q) {
				return false
			}
		}
		return true
	}
	anybody := false
	for _, q := range w.pods {
		m := w.nodes[q.Spec.NodeName]
		if m == nil {
			continue
		}
		for _, t := range near(p) {
			if _, has := m.Labels[t.TopologyKey]; has && all(q) {
				anybody = true
			}
		}
		for _, t := range away(p) {
			if together(m, n, t.TopologyKey) && w.speaks(p, &t, q) {
				return false
			}
		}
		for _, t := range away(q) {
			if together(m, n, t.TopologyKey) && w.speaks(q, &t, p) {
				return false
			}
		}
	}
	for _, t := range near(p) {
		if _, has := n.Labels[t.TopologyKey]; !has {
			return false
		}
		if !anybody && all(p) {
			continue
		}
		ok := false
		for _, q := range w.pods {
			if m := w.nodes[q.Spec.NodeName]; m != nil && together(m, n, t.TopologyKey) && all(q) {
				ok = true
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// even judges by the hard spread constraints.
func (w *world) even(p *corev1.Pod, n *corev1.Node) bool {
	var hard []corev1.TopologySpreadConstraint
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			hard = append(hard, c)
		}
	}
	for _, c := range hard {
		mine, ok := n.Labels[c.TopologyKey]
		if !ok {
			return false
		}
		count := map[string]int{}
		for _, m := range w.nodes {
			counts := selects(p, m)
			for _, d := range hard {
				_, has := m.Labels[d.TopologyKey]
				counts = counts && has
			}
			if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
				open := m.DeepCopy()
				open.Spec.Unschedulable = false
				counts = counts && tolerable(p, open)
			}
			if !counts {
				continue
			}
			v := m.Labels[c.TopologyKey]
			count[v] += 0
			for _, q := range w.on(m) {
				if q.Namespace == p.Namespace && q.DeletionTimestamp == nil && selector(c.LabelSelector).Matches(labels.Set(q.Labels)) {
					count[v]++
				}
			}
		}
		least := 0
		if c.MinDomains == nil || len(count) >= int(*c.MinDomains) {
			first := true
			for _, k := range count {
				if first || k < least {
					least, first = k, false
				}
			}
		}
		self := 0
		if selector(c.LabelSelector).Matches(labels.Set(p.Labels)) {
			self = 1
		}
		if count[mine]+self-least > int(c.MaxSkew) {
			return false
		}
	}
	return true
}
