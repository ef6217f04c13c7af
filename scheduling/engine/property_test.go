package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/profile"
	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

// random makes clusters and pods in which everything happens.
type random struct{ *rand.Rand }

func (r random) one(s ...string) string { return s[r.IntN(len(s))] }
func (r random) in(n int) bool          { return r.IntN(n) == 0 }

func (r random) node(name string) *corev1.Node {
	n := Node(name, fmt.Sprint(1+r.IntN(4)), fmt.Sprint(1+r.IntN(6), "Gi"))
	n.Status.Allocatable["pods"] = *resource.NewQuantity(int64(3+r.IntN(6)), resource.DecimalSI)
	if !r.in(5) {
		n.Labels[corev1.LabelTopologyZone] = r.one("z1", "z2", "z3")
	}
	n.Labels["disk"] = r.one("ssd", "hdd")
	if r.in(4) {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse("2")
	}
	if r.in(6) {
		taint(r.one("t1", "t2"), corev1.TaintEffect(r.one("NoSchedule", "NoExecute", "PreferNoSchedule")))(n)
	}
	n.Spec.Unschedulable = r.in(10)
	return n
}

func (r random) selector() *metav1.LabelSelector {
	if r.in(4) {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{r.one("a", "b", "c")}}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": r.one("a", "b", "c")}}
}

func (r random) term() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: r.one(corev1.LabelHostname, corev1.LabelTopologyZone, "disk"), LabelSelector: r.selector()}
	switch r.IntN(5) {
	case 0:
		t.Namespaces = []string{r.one("default", "other")}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": r.one("x", "y")}}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{}
	}
	return t
}

// pod of one of so many shapes: equal numbers make pods that are alike.
func (r random) pod(name string, shape uint64) *corev1.Pod {
	s := random{rand.New(rand.NewPCG(shape, 77))}
	p := Pod(name, fmt.Sprint(100*s.IntN(12), "m"), fmt.Sprint(128*s.IntN(10), "Mi"))
	p.Namespace = s.one("default", "default", "other")
	p.Labels = map[string]string{"app": s.one("a", "b", "c"), "tier": s.one("1", "2")}
	prio := int32(s.IntN(4))
	p.Spec.Priority = &prio
	if s.in(6) {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	if s.in(4) {
		p.Spec.NodeSelector = map[string]string{"disk": s.one("ssd", "hdd")}
	}
	if s.in(3) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: s.one("t1", "t2"), Operator: corev1.TolerationOpExists}}
	}
	if s.in(8) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
	}
	if s.in(6) {
		hostPort(int32(80+s.IntN(2)), s.one("", "10.0.0.1"))(p)
	}
	a := &corev1.Affinity{}
	if s.in(5) {
		a.PodAffinity = &corev1.PodAffinity{}
		for range 1 + s.IntN(2) {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, s.term())
		}
	}
	if s.in(4) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{s.term()}}
	}
	if s.in(4) {
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + s.IntN(100)), PodAffinityTerm: s.term()}}
	}
	if s.in(4) {
		a.NodeAffinity = &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: int32(1 + s.IntN(100)),
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{s.one("ssd", "hdd")}}}}}}}
	}
	p.Spec.Affinity = a
	for s.in(3) {
		c := corev1.TopologySpreadConstraint{MaxSkew: int32(1 + s.IntN(2)), TopologyKey: s.one(corev1.LabelHostname, corev1.LabelTopologyZone, "disk"), LabelSelector: s.selector(),
			WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(s.one("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"))}
		if s.in(3) {
			n := int32(1 + s.IntN(4))
			c.MinDomains = &n
		}
		if s.in(3) {
			honour := corev1.NodeInclusionPolicyHonor
			c.NodeTaintsPolicy = &honour
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
	return p
}

// history runs random changes and calls step with a pod to place after each few.
func history(t *testing.T, seed uint64, nodes, steps int, step func(w *world, e *engine.Engine, prof *engine.Profile, p *cluster.Pod)) {
	t.Helper()
	r := random{rand.New(rand.NewPCG(seed, 3))}
	w := &world{nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}, namespaces: map[string]labels.Set{"default": {"team": "x"}, "other": {"team": "y"}}}
	c := cluster.New()
	for k, v := range w.namespaces {
		c.SetNamespace(k, v)
	}
	e := engine.New(c, &Objects{})
	prof := profile.Default().Profiles[0]
	prof.Percentage = 100
	prof.CandidatesPercent = 100
	setNode := func(n *corev1.Node) {
		w.nodes[n.Name] = n
		c.SetNode(n)
	}
	for i := range nodes {
		setNode(r.node(fmt.Sprint("n", i)))
	}
	remove := func() {
		for name, p := range w.pods {
			delete(w.pods, name)
			c.RemovePod(p.UID)
			break
		}
	}
	for i := range steps {
		switch r.IntN(12) {
		case 0:
			setNode(r.node(fmt.Sprint("n", r.IntN(nodes))))
		case 1:
			n := fmt.Sprint("n", r.IntN(nodes))
			if w.nodes[n] != nil && len(w.nodes) > 2 {
				for name, p := range w.pods {
					if p.Spec.NodeName == n {
						delete(w.pods, name)
						c.RemovePod(p.UID)
					}
				}
				delete(w.nodes, n)
				c.RemoveNode(n)
			}
		case 2, 3:
			remove()
		case 4:
			for name, p := range w.pods {
				q := p.DeepCopy()
				now := metav1.NewTime(time.Unix(1, 0))
				q.DeletionTimestamp = &now
				w.pods[name] = q
				c.SetPod(cluster.NewPod(q))
				break
			}
		case 5:
			w.namespaces["other"] = labels.Set{"team": r.one("x", "y")}
			c.SetNamespace("other", w.namespaces["other"])
		}
		p := r.pod(fmt.Sprint("p", i), seed*8+uint64(r.IntN(8)))
		step(w, e, prof, cluster.NewPod(p))
	}
}

func (w *world) fitting(p *corev1.Pod) (out []string) {
	for name, n := range w.nodes {
		if w.fits(p, n) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestDecisionsEqualTheReference: whatever happened before, a pod is placed if and
// only if the plain reference finds a node for it, on one of those; and on one
// with the highest score that a calculation from nothing gives, though most of it
// was kept from pods of the same shape.
func TestDecisionsEqualTheReference(t *testing.T) {
	placed, refused := 0, 0
	for seed := range uint64(60) {
		history(t, seed, 3+int(seed%9), 60, func(w *world, e *engine.Engine, prof *engine.Profile, p *cluster.Pod) {
			want := w.fitting(p.Pod)
			d := e.Decide(p, prof)
			if d.Node == nil {
				refused++
				if len(want) > 0 {
					t.Fatalf("seed %d: %s is refused (%v) but fits on %v", seed, p.Name, d.Refusal, want)
				}
				return
			}
			placed++
			if !slices.Contains(want, d.Node.Name) {
				t.Fatalf("seed %d: %s is placed on %s but fits on %v only", seed, p.Name, d.Node.Name, want)
			}
			totals := e.Totals(p, prof)
			for n, v := range totals {
				if v > totals[d.Node.Name] {
					t.Fatalf("seed %d: %s is placed on %s but %s scores more: %v", seed, p.Name, d.Node.Name, n, totals)
				}
			}
			e.Assume(p, d.Node.Name)
			q := p.DeepCopy()
			q.Spec.NodeName = d.Node.Name
			w.pods[p.Name] = q
		})
	}
	if placed < 500 || refused < 200 {
		t.Fatalf("%d placed, %d refused: the test shows little", placed, refused)
	}
}

// TestPreemptionTakesTheLeast: victims are all less important than the pod, the
// pod fits when they are gone, and would not if any one of them stayed; and where
// preemption finds nothing, no node would fit without all less important pods.
func TestPreemptionTakesTheLeast(t *testing.T) {
	found, none := 0, 0
	for seed := range uint64(60) {
		history(t, seed, 3+int(seed%5), 60, func(w *world, e *engine.Engine, prof *engine.Profile, p *cluster.Pod) {
			d := e.Decide(p, prof)
			if d.Node != nil {
				e.Assume(p, d.Node.Name)
				q := p.DeepCopy()
				q.Spec.NodeName = d.Node.Name
				w.pods[p.Name] = q
				return
			}
			before := e.Totals(p, prof)
			v := e.Preempt(p, prof, d.Refusal)
			if after := e.Totals(p, prof); len(before) != len(after) {
				t.Fatalf("seed %d: preemption changed the cluster", seed)
			}
			without := func(node string, gone func(*corev1.Pod) bool) bool {
				less := &world{nodes: w.nodes, pods: map[string]*corev1.Pod{}, namespaces: w.namespaces}
				for k, q := range w.pods {
					if q.Spec.NodeName != node || !gone(q) {
						less.pods[k] = q
					}
				}
				return less.fits(p.Pod, w.nodes[node])
			}
			if v == nil {
				none++
				for n := range w.nodes {
					if without(n, func(q *corev1.Pod) bool { return *q.Spec.Priority < p.Priority }) {
						t.Fatalf("seed %d: %s finds no victims, but it would fit on %s (%v)", seed, p.Name, n, d.Refusal)
					}
				}
				return
			}
			found++
			node := v.Node.Name
			victim := func(q *corev1.Pod) bool {
				return slices.ContainsFunc(v.Pods, func(x *cluster.Pod) bool { return x.UID == q.UID })
			}
			for _, q := range v.Pods {
				if q.Priority >= p.Priority {
					t.Fatalf("seed %d: a victim of priority %d for a pod of %d", seed, q.Priority, p.Priority)
				}
			}
			if !without(node, victim) {
				t.Fatalf("seed %d: %s does not fit on %s without its %d victims", seed, p.Name, node, len(v.Pods))
			}
			for _, spared := range v.Pods {
				if len(near(p.Pod)) == 0 && without(node, func(q *corev1.Pod) bool { return victim(q) && q.UID != spared.UID }) {
					t.Fatalf("seed %d: %s need not go from %s for %s", seed, spared.Name, node, p.Name)
				}
			}
		})
	}
	if found < 50 || none < 50 {
		t.Fatalf("%d with victims, %d without: the test shows little", found, none)
	}
}
