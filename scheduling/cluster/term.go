package cluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Term is a pod affinity term with its selectors parsed.
type Term struct {
	TopologyKey string
	Weight      int64 // of a preference, 1 to 100
	id          string
	namespaces  []string
	nsSelector  labels.Selector // nil: namespaces alone
	selector    labels.Selector
}

// ID is equal for terms that match the same pods in the same domains with the
// same weight.
func (t *Term) ID() string { return t.id }

// Keys are the label keys of pods that the term looks at.
func (t *Term) Keys() []string { return SelectorKeys(t.selector) }

// Matches says whether the term speaks of a pod with these labels.
func (t *Term) Matches(namespace string, pod labels.Set, namespaces Namespaces) bool {
	in := slices.Contains(t.namespaces, namespace)
	if !in && t.nsSelector != nil {
		in = t.nsSelector.Empty() || t.nsSelector.Matches(namespaces.NamespaceLabels(namespace))
	}
	return in && t.selector.Matches(pod)
}

// Namespaces knows their labels; nil for one that is not there.
type Namespaces interface {
	NamespaceLabels(name string) labels.Set
}

// SelectorKeys are the label keys that a selector looks at.
func SelectorKeys(s labels.Selector) []string {
	rs, _ := s.Requirements()
	keys := make([]string, len(rs))
	for i, r := range rs {
		keys[i] = r.Key()
	}
	return keys
}

func parseTerm(owner *corev1.Pod, t *corev1.PodAffinityTerm, weight int32) (Term, error) {
	sel, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return Term{}, fmt.Errorf("label selector of an affinity term: %w", err)
	}
	// The API server merges these into the selector when the pod is made; one made
	// without it (an older version, a test) still means them.
	if sel, err = mergeLabelKeys(sel, t.LabelSelector, owner.Labels, t.MatchLabelKeys, t.MismatchLabelKeys); err != nil {
		return Term{}, err
	}
	x := Term{TopologyKey: t.TopologyKey, Weight: int64(weight), namespaces: t.Namespaces, selector: sel}
	if t.NamespaceSelector != nil {
		if x.nsSelector, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
			return Term{}, fmt.Errorf("namespace selector of an affinity term: %w", err)
		}
	} else if len(t.Namespaces) == 0 {
		x.namespaces = []string{owner.Namespace}
	}
	ns := ""
	if x.nsSelector != nil {
		ns = "{" + x.nsSelector.String() + "}"
	}
	x.id = fmt.Sprintf("%s|%s|%s%s|%d", x.TopologyKey, sel, strings.Join(x.namespaces, ","), ns, weight)
	return x, nil
}

// mergeLabelKeys adds the pod's own values of match and the opposite of its values
// of mismatch to a selector, but for those that are in it already.
func mergeLabelKeys(sel labels.Selector, from *metav1.LabelSelector, own labels.Set, match, mismatch []string) (labels.Selector, error) {
	has := func(k string, op metav1.LabelSelectorOperator) bool {
		return from != nil && slices.ContainsFunc(from.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == k && r.Operator == op })
	}
	for _, k := range match {
		if v, ok := own[k]; ok && !has(k, metav1.LabelSelectorOpIn) {
			r, err := labels.NewRequirement(k, "in", []string{v})
			if err != nil {
				return nil, fmt.Errorf("matchLabelKeys: %w", err)
			}
			sel = sel.Add(*r)
		}
	}
	for _, k := range mismatch {
		if v, ok := own[k]; ok && !has(k, metav1.LabelSelectorOpNotIn) {
			r, err := labels.NewRequirement(k, "notin", []string{v})
			if err != nil {
				return nil, fmt.Errorf("mismatchLabelKeys: %w", err)
			}
			sel = sel.Add(*r)
		}
	}
	return sel, nil
}

// Terms are a pod's wishes about other pods.
type Terms struct {
	Near, Away             []Term // required affinity and anti-affinity
	PreferNear, PreferAway []Term
}

func (t *Terms) each(f func(*Term)) {
	for _, l := range [][]Term{t.Near, t.Away, t.PreferNear, t.PreferAway} {
		for i := range l {
			f(&l[i])
		}
	}
}

// parseTerms reads a pod's affinity; nil where it has none.
func parseTerms(p *corev1.Pod) (*Terms, error) {
	a := p.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil, nil
	}
	out := &Terms{}
	read := func(to *[]Term, hard []corev1.PodAffinityTerm, soft []corev1.WeightedPodAffinityTerm) error {
		for i := range hard {
			t, err := parseTerm(p, &hard[i], 0)
			if err != nil {
				return err
			}
			*to = append(*to, t)
		}
		for i := range soft {
			t, err := parseTerm(p, &soft[i].PodAffinityTerm, soft[i].Weight)
			if err != nil {
				return err
			}
			*to = append(*to, t)
		}
		return nil
	}
	if f := a.PodAffinity; f != nil {
		if err := read(&out.Near, f.RequiredDuringSchedulingIgnoredDuringExecution, nil); err != nil {
			return nil, err
		}
		if err := read(&out.PreferNear, nil, f.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
	}
	if f := a.PodAntiAffinity; f != nil {
		if err := read(&out.Away, f.RequiredDuringSchedulingIgnoredDuringExecution, nil); err != nil {
			return nil, err
		}
		if err := read(&out.PreferAway, nil, f.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// MayMatch is Matches for one who does not know the namespaces' labels: it says
// yes too often.
func (t *Term) MayMatch(namespace string, pod labels.Set) bool {
	return (t.nsSelector != nil || slices.Contains(t.namespaces, namespace)) && t.selector.Matches(pod)
}
