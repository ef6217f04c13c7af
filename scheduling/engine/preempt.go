package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Budget is a PodDisruptionBudget, as far as preemption respects it.
type Budget struct {
	Namespace string
	Selector  labels.Selector
	// Allowed is how many more pods may be disrupted, of those that are not in
	// Disrupted, by name, already.
	Allowed   int
	Disrupted map[string]bool
}

// SetBudgets gives the budgets that preemption respects from now on.
func (e *Engine) SetBudgets(b []Budget) {
	e.budgets = b
	e.budgetsGen++
}

// Victims are the pods that would have to go from a node for another to fit.
type Victims struct {
	Node *cluster.Node
	Pods []*cluster.Pod // most important first
	// Violations is how many of them a budget would rather keep.
	Violations int
}

// Texts of conditions, in kube-scheduler's words.
const (
	textNever       = "not eligible due to preemptionPolicy=Never."
	textTerminating = "not eligible due to a terminating pod on the nominated node."
	textNoVictims   = "No preemption victims found for incoming pod"
	textNoHelp      = "Preemption is not helpful for scheduling"
)

// Preempt chooses the node on which the fewest and least important pods have to go
// for p, which has just been refused with r. It returns nil, and says why in
// r.Preemption, where that cannot help or is not allowed. It changes nothing.
func (e *Engine) Preempt(p *cluster.Pod, prof *Profile, r *Refusal) *Victims {
	if ok, why := e.mayPreempt(p); !ok {
		r.Preemption = why
		return nil
	}
	s, done := e.shapeFor(p, prof)
	defer done()
	helpless := map[string]int{}
	if s.refused != nil {
		r.Preemption = unhelpful(len(e.Nodes()), map[string]int{textNoHelp: len(e.Nodes())})
		return nil
	}
	best := s.preempt(p, helpless)
	if best == nil {
		r.Preemption = unhelpful(len(e.Nodes()), helpless)
	}
	return best
}

func unhelpful(nodes int, reasons map[string]int) string {
	return fmt.Sprintf("0/%d nodes are available: %s.", nodes, histogram(reasons))
}

// shapeFor is the kept shape of the pod, built and up to date, or one made for
// this call.
func (e *Engine) shapeFor(p *cluster.Pod, prof *Profile) (s *shape, done func()) {
	if el := e.shapes[e.ShapeOf(p, prof)]; el != nil {
		if s = el.Value.(*shape); !s.stale() {
			if s.refused == nil {
				s.sync()
			}
			return s, func() {}
		}
	}
	s = e.prepare(p, prof)
	if s.refused == nil {
		s.build()
	}
	return s, func() { e.release(s) }
}

// mayPreempt says whether the pod may take the place of others now.
func (e *Engine) mayPreempt(p *cluster.Pod) (ok bool, why string) {
	if p.Spec.PreemptionPolicy != nil && *p.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false, textNever
	}
	name := e.NominatedOn(p.UID)
	if name == "" {
		name = p.Status.NominatedNodeName
	}
	if n := e.Get(name); n != nil {
		for _, q := range n.Pods {
			if q.Priority < p.Priority && leaves(q) {
				return false, textTerminating
			}
		}
	}
	return true, ""
}

// leaves says whether a pod is going away for preemption already.
func leaves(q *cluster.Pod) bool {
	if q.DeletionTimestamp == nil {
		return false
	}
	for _, c := range q.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
		}
	}
	return false
}

// preempt looks for victims on as many nodes as the profile says, and chooses.
// What was found for a node is kept until something changes there.
func (s *shape) preempt(p *cluster.Pod, helpless map[string]int) *Victims {
	if s.victims == nil || len(s.wide) > 0 || s.budgets != s.e.budgetsGen {
		// What happens elsewhere, or to a budget, may change what has to go here.
		s.victims, s.budgets = map[int32]*Victims{}, s.e.budgetsGen
	}
	nodes := s.e.Nodes()
	want := min(max(len(nodes)*s.profile.CandidatesPercent/100, s.profile.CandidatesLeast), len(nodes))
	var best *Victims
	take := func(v *Victims) {
		if best == nil || better(v, best) {
			best = v
		}
	}
	// Those that are known come first: they cost nothing.
	for _, v := range s.victims {
		take(v)
	}
	verdicts := map[*group]*plugin.Reason{}
	begin := 0
	if len(nodes) > 0 {
		begin = s.e.rnd.IntN(len(nodes))
	}
	for i := 0; i < len(nodes) && len(s.victims) < want; i++ {
		n := nodes[(begin+i)%len(nodes)]
		slot := int32(n.Slot())
		if _, known := s.victims[slot]; known {
			continue
		}
		why := s.verdict(n, verdicts)
		switch {
		case why == nil:
			continue
		case why.Final:
			helpless[textNoHelp]++
			continue
		}
		v, texts := s.victimsOn(n, p)
		if v == nil {
			for _, t := range texts {
				helpless[t]++
			}
			continue
		}
		s.victims[slot] = v
		take(v)
	}
	return best
}

// victimsOn finds the pods that have to go from the node: of the less important
// ones all go, and come back, the most important and those with a budget first, if
// the pod still fits beside them.
func (s *shape) victimsOn(n *cluster.Node, p *cluster.Pod) (*Victims, []string) {
	var gone []*cluster.Pod
	for _, q := range n.Pods {
		if q.Priority < p.Priority {
			gone = append(gone, q)
		}
	}
	if len(gone) == 0 {
		return nil, []string{textNoVictims}
	}
	slices.SortFunc(gone, moreImportant)
	e := s.e
	for _, q := range gone {
		e.Suppose(n, q, false)
	}
	why := s.judge(n, p)
	if why != nil {
		for _, q := range gone {
			e.Suppose(n, q, true)
		}
		return nil, why.Texts
	}
	kept, free := byBudget(gone, e.budgets)
	v := &Victims{Node: n}
	for i, l := range [][]*cluster.Pod{kept, free} {
		for _, q := range l {
			e.Suppose(n, q, true)
			if s.judge(n, p) == nil {
				continue
			}
			e.Suppose(n, q, false)
			v.Pods = append(v.Pods, q)
			if i == 0 {
				v.Violations++
			}
		}
	}
	for _, q := range v.Pods {
		e.Suppose(n, q, true)
	}
	if len(v.Pods) == 0 {
		return nil, []string{textNoVictims}
	}
	slices.SortFunc(v.Pods, moreImportant)
	return v, nil
}

// moreImportant orders by priority, and then the one that has run longer first.
func moreImportant(a, b *cluster.Pod) int {
	if c := cmp.Compare(b.Priority, a.Priority); c != 0 {
		return c
	}
	if c := started(a).Compare(started(b)); c != 0 {
		return c
	}
	return cmp.Compare(a.UID, b.UID)
}

// started is when the pod started; one that has not counts as starting last.
func started(p *cluster.Pod) time.Time {
	if p.Status.StartTime != nil {
		return p.Status.StartTime.Time
	}
	return time.Unix(math.MaxInt32*2, 0)
}

// byBudget parts the pods whose end would break a budget from the others, both in
// the order given.
func byBudget(pods []*cluster.Pod, budgets []Budget) (kept, free []*cluster.Pod) {
	left := make([]int, len(budgets))
	for i := range budgets {
		left[i] = budgets[i].Allowed
	}
	for _, p := range pods {
		breaks := false
		for i := range budgets {
			b := &budgets[i]
			if b.Namespace != p.Namespace || len(p.Labels) == 0 || b.Selector.Empty() || !b.Selector.Matches(labels.Set(p.Labels)) || b.Disrupted[p.Name] {
				continue
			}
			if left[i]--; left[i] < 0 {
				breaks = true
			}
		}
		if breaks {
			kept = append(kept, p)
		} else {
			free = append(free, p)
		}
	}
	return kept, free
}

// better says whether a is the lesser harm: fewer broken budgets, then a lower
// highest priority, then a lower sum of priorities, then fewer pods, then a most
// important one that has run less long.
func better(a, b *Victims) bool {
	if a.Violations != b.Violations {
		return a.Violations < b.Violations
	}
	if len(a.Pods) == 0 || len(b.Pods) == 0 {
		return len(a.Pods) < len(b.Pods)
	}
	if x, y := a.Pods[0].Priority, b.Pods[0].Priority; x != y {
		return x < y
	}
	// Each pod counts, whatever its priority: the least priority is worth 1.
	sum := func(v *Victims) (s int64) {
		for _, p := range v.Pods {
			s += int64(p.Priority) + math.MaxInt32 + 1
		}
		return s
	}
	if x, y := sum(a), sum(b); x != y {
		return x < y
	}
	if len(a.Pods) != len(b.Pods) {
		return len(a.Pods) < len(b.Pods)
	}
	return earliest(a).After(earliest(b))
}

// earliest start of the victims of the highest priority.
func earliest(v *Victims) time.Time {
	t := started(v.Pods[0])
	for _, p := range v.Pods[1:] {
		if p.Priority == v.Pods[0].Priority && started(p).Before(t) {
			t = started(p)
		}
	}
	return t
}
