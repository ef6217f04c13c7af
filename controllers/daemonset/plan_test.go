package daemonset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Unix(1e9, 0)

type option func(*corev1.Pod)

// podOn is a pod of the template v2, available on the node.
func podOn(node, name string, options ...option) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"v": "2"}, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		}},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func old(p *corev1.Pod)      { p.Labels["v"] = "1" }
func notReady(p *corev1.Pod) { p.Status.Conditions = nil }
func fresh(p *corev1.Pod) {
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
}
func going(p *corev1.Pod)     { p.DeletionTimestamp = &metav1.Time{Time: now} }
func failed(p *corev1.Pod)    { p.Status = corev1.PodStatus{Phase: corev1.PodFailed} }
func succeeded(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded} }
func young(p *corev1.Pod)     { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Second)) }

func updated(p *corev1.Pod) bool { return p.Labels["v"] == "2" }

func rolling(maxSurge, maxUnavailable intstr.IntOrString) func(*appsv1.DaemonSet) {
	return func(ds *appsv1.DaemonSet) {
		ds.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &maxSurge, MaxUnavailable: &maxUnavailable}
	}
}

func unavailable(n int) func(*appsv1.DaemonSet) { return rolling(intstr.FromInt(0), intstr.FromInt(n)) }
func surging(n int) func(*appsv1.DaemonSet)     { return rolling(intstr.FromInt(n), intstr.FromInt(0)) }

func TestDecide(t *testing.T) {
	onDelete := func(ds *appsv1.DaemonSet) { ds.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType }
	noSchedule := corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoSchedule}
	noExecute := corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoExecute}
	three := []*corev1.Node{newNode("n1"), newNode("n2"), newNode("n3")}
	allOld := []*corev1.Pod{podOn("n1", "a", old), podOn("n2", "b", old), podOn("n3", "c", old)}
	for name, c := range map[string]struct {
		change         func(*appsv1.DaemonSet)
		nodes          []*corev1.Node
		pods           []*corev1.Pod
		backoff        time.Duration
		create, delete string
	}{
		"every node lacks one":        {nodes: three, create: "n1 n2 n3"},
		"one node lacks one":          {nodes: three, pods: []*corev1.Pod{podOn("n1", "a"), podOn("n3", "c")}, create: "n2"},
		"settled":                     {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a")}},
		"tainted NoSchedule":          {nodes: []*corev1.Node{newNode("n1", noSchedule), newNode("n2", noSchedule)}, pods: []*corev1.Pod{podOn("n1", "a")}},
		"tainted NoExecute":           {nodes: []*corev1.Node{newNode("n1", noExecute)}, pods: []*corev1.Pod{podOn("n1", "a"), podOn("n1", "b", going)}, delete: "a"},
		"one that goes is waited for": {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a", going)}},
		"two on a node":               {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "b", young), podOn("n1", "a")}, delete: "b"},
		"node is gone":                {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a"), podOn("gone", "bound"), podOn("", "stray")}, delete: "stray"},
		"failed":                      {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a", failed)}, delete: "a"},
		"failed often":                {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a", failed)}, backoff: time.Minute},
		"succeeded":                   {nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a", succeeded)}, backoff: time.Minute, delete: "a"},

		"on delete":                        {change: onDelete, nodes: three, pods: allOld},
		"rolling by default":               {nodes: three, pods: allOld, delete: "a"},
		"rolling two at once":              {change: unavailable(2), nodes: three, pods: allOld, delete: "a b"},
		"rolling half, rounded up":         {change: rolling(intstr.FromInt(0), intstr.FromString("50%")), nodes: three, pods: allOld, delete: "a b"},
		"rolling waits for the new":        {nodes: three, pods: []*corev1.Pod{podOn("n1", "a", notReady), podOn("n2", "b", old), podOn("n3", "c", old)}},
		"rolling waits for minReady":       {nodes: three, pods: []*corev1.Pod{podOn("n1", "a", fresh), podOn("n2", "b", old), podOn("n3", "c", old)}},
		"rolling waits for one that goes":  {nodes: three, pods: []*corev1.Pod{podOn("n1", "a", going), podOn("n2", "b", old), podOn("n3", "c", old)}},
		"rolling goes on":                  {nodes: three, pods: []*corev1.Pod{podOn("n1", "a"), podOn("n2", "b", old), podOn("n3", "c", old)}, delete: "b"},
		"rolling replaces broken ones":     {nodes: three, pods: []*corev1.Pod{podOn("n1", "a", old, notReady), podOn("n2", "b", old, notReady), podOn("n3", "c", old)}, delete: "a b"},
		"surge creates first":              {change: surging(1), nodes: three, pods: allOld, create: "n1"},
		"surge waits for the new":          {change: surging(1), nodes: three, pods: append(slices.Clone(allOld), podOn("n1", "a2", notReady, young))},
		"surge waits for minReady":         {change: surging(1), nodes: three, pods: append(slices.Clone(allOld), podOn("n1", "a2", fresh, young))},
		"surge removes when available":     {change: surging(1), nodes: three, pods: append(slices.Clone(allOld), podOn("n1", "a2", young)), delete: "a"},
		"surge goes on":                    {change: surging(1), nodes: three, pods: []*corev1.Pod{podOn("n1", "a"), podOn("n2", "b", old), podOn("n3", "c", old)}, create: "n2"},
		"surge does not wait for broken":   {change: surging(1), nodes: three, pods: []*corev1.Pod{podOn("n1", "a", old, notReady), podOn("n2", "b", old, notReady), podOn("n3", "c", old)}, create: "n1 n2 n3"},
		"surge removes broken, having new": {change: surging(1), nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a", old, notReady), podOn("n1", "b", notReady)}, delete: "a"},
		"surge has no third":               {change: surging(1), nodes: three[:1], pods: []*corev1.Pod{podOn("n1", "a", old), podOn("n1", "b", notReady), podOn("n1", "c", notReady, young)}, delete: "c"},
	} {
		ds := newSet()
		ds.Spec.MinReadySeconds = 10
		if c.change != nil {
			c.change(ds)
		}
		p := observe(ds, c.nodes, c.pods, updated, now).decide(func(string) time.Duration { return c.backoff })
		var names []string
		for _, pod := range p.delete {
			names = append(names, pod.Name)
		}
		if got := strings.Join(p.create, " "); got != c.create {
			t.Errorf("%s: creates on %q, want %q", name, got, c.create)
		}
		if got := strings.Join(names, " "); got != c.delete {
			t.Errorf("%s: deletes %q, want %q", name, got, c.delete)
		}
		if name == "failed often" && p.again != time.Minute {
			t.Errorf("%s: looks again after %s", name, p.again)
		}
	}
}

func TestSurgeOfBrokenIsNotLimited(t *testing.T) {
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for i := range 300 {
		n := fmt.Sprintf("n%03d", i)
		nodes = append(nodes, newNode(n))
		pods = append(pods, podOn(n, "p"+n, old, notReady))
	}
	ds := newSet()
	surging(1)(ds)
	p := observe(ds, nodes, pods, updated, now).decide(func(string) time.Duration { return 0 })
	if len(p.create) != burst {
		t.Errorf("%d pods at once, want %d", len(p.create), burst)
	}
}

func TestStatus(t *testing.T) {
	ds := newSet()
	ds.Spec.MinReadySeconds = 10
	ds.Status.NumberReady = 77
	nodes := []*corev1.Node{newNode("n1"), newNode("n2"), newNode("n3"), newNode("n4"), newNode("n5", corev1.Taint{Key: "x", Effect: corev1.TaintEffectNoSchedule})}
	pods := []*corev1.Pod{podOn("n1", "a"), podOn("n2", "b", fresh), podOn("n3", "c", old, notReady), podOn("n5", "e")}
	got, next := observe(ds, nodes, pods, updated, now).status()
	want := appsv1.DaemonSetStatus{
		ObservedGeneration: 1, DesiredNumberScheduled: 4, CurrentNumberScheduled: 3, NumberMisscheduled: 1,
		NumberReady: 2, NumberAvailable: 1, NumberUnavailable: 3, UpdatedNumberScheduled: 2,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || next != 9*time.Second {
		t.Errorf("got  %+v after %s\nwant %+v", got, next, want)
	}
}
