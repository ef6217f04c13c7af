package statefulset

import (
	"fmt"
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

func newSet(replicas int32) *appsv1.StatefulSet {
	l := map[string]string{"app": "web"}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web", Generation: 1},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: l}, ServiceName: "web",
			PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			UpdateStrategy:      appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
			},
		},
	}
}

func ready() corev1.PodStatus {
	return corev1.PodStatus{
		Phase:             corev1.PodRunning,
		ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-2 * time.Hour))}}}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		},
	}
}

// parsePods reads pods such as "0 1:old,unready 2": numbers with what is special
// of them. Without, a pod is of the revision "new" and available.
func parsePods(t *testing.T, text string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for _, word := range strings.Fields(text) {
		number, marks, _ := strings.Cut(word, ":")
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-" + number, Namespace: "default", UID: types.UID("web-" + number), Labels: map[string]string{appsv1.StatefulSetRevisionLabel: "new"}},
			Status:     ready(),
		}
		for _, mark := range strings.Split(marks, ",") {
			switch mark {
			case "":
			case "old", "given-up":
				p.Labels[appsv1.StatefulSetRevisionLabel] = mark
			case "unready": // was ready once
				p.Status.Conditions[0].Status = corev1.ConditionFalse
			case "never-ready":
				p.Status.Conditions[0].Status = corev1.ConditionFalse
				p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-3 * time.Hour))
			case "crashing":
				p.Status.Conditions[0].Status = corev1.ConditionFalse
				p.Status.ContainerStatuses[0] = corev1.ContainerStatus{RestartCount: 5, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}
			case "pending":
				p.Status = corev1.PodStatus{Phase: corev1.PodPending}
			case "fresh":
				p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
			case "going":
				p.DeletionTimestamp = &metav1.Time{Time: now}
			case "failed":
				p.Status = corev1.PodStatus{Phase: corev1.PodFailed}
			case "succeeded":
				p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
			default:
				t.Fatalf("pod mark %q", mark)
			}
		}
		pods = append(pods, p)
	}
	return pods
}

func partition(n int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}
	}
}

func unavailable(v intstr.IntOrString) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &v}
	}
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
}
func from5(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }

func both(a, b func(*appsv1.StatefulSet)) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { a(s); b(s) }
}

// show writes a plan as "+0 -1 x2": created (with the revision where it is not
// "new"), deleted to be made anew, condemned.
func show(p plan) string {
	var words []string
	for _, c := range p.create {
		w := fmt.Sprintf("+%d", c.ordinal)
		if c.revision != "new" {
			w += ":" + c.revision
		}
		words = append(words, w)
	}
	for _, pod := range p.delete {
		words = append(words, strings.Replace(pod.Name, "web", "", 1))
	}
	for _, n := range p.condemn {
		words = append(words, fmt.Sprintf("x%d", n.ordinal))
	}
	return strings.Join(words, " ")
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas int32
		change   func(*appsv1.StatefulSet)
		pods     string
		want     string
	}{
		{"first", 3, nil, "", "+0"},
		{"next when ready", 3, nil, "0", "+1"},
		{"waits for ready", 3, nil, "0:unready", ""},
		{"waits for pending", 3, nil, "0:pending", ""},
		{"waits for minReady", 3, nil, "0:fresh", ""},
		{"waits for one that goes", 3, nil, "0:going 1", ""},
		{"fills a gap", 3, nil, "0 2", "+1"},
		{"replaces a failed one", 3, nil, "0:failed 1", "-0"},
		{"replaces a succeeded one", 3, nil, "0:succeeded 1", "-0"},
		{"settled", 3, nil, "0 1 2", ""},
		{"starts elsewhere", 2, from5, "", "+5"},
		{"start moved", 2, from5, "0 5 6", "x0"},

		{"scales down from the top", 1, nil, "0 1 2", "x2"},
		{"scales down one by one", 1, nil, "0 1 2:going", ""},
		{"does not scale down while one is unready", 1, nil, "0:unready 1 2", ""},
		{"does not scale down below a troubled one", 1, nil, "0 1:unready 2:unready", ""},
		{"scales down the troubled one", 1, nil, "0 1 2:unready", "x2"},
		{"scales down to nothing", 0, nil, "0", "x0"},

		{"parallel creates all", 3, parallel, "", "+0 +1 +2"},
		{"parallel waits for none", 3, parallel, "0:pending 1:going", "+2"},
		{"parallel scales down all", 1, parallel, "0:unready 1 2:going 3:pending", "x3 x1"},
		{"parallel replaces a failed one", 2, parallel, "0:failed", "+1 -0"},

		{"rolls from the top", 3, nil, "0:old 1:old 2:old", "-2"},
		{"rolls on", 3, nil, "0:old 1:old 2", "-1"},
		{"rolling waits for the new", 3, nil, "0:old 1:old 2:unready", ""},
		{"rolling makes it anew", 3, nil, "0:old 1:old", "+2"},
		{"rolling two at once", 3, unavailable(intstr.FromInt(2)), "0:old 1:old 2:old", "-2 -1"},
		{"rolling half, rounded up", 3, unavailable(intstr.FromString("50%")), "0:old 1:old 2:old", "-2 -1"},
		{"rolling in parallel is one at a time", 3, parallel, "0:old 1:old 2:old", "-2"},
		{"rolling in parallel waits", 3, parallel, "0:old 1:old 2:unready", ""},
		{"rolling in parallel replaces a troubled one in its turn", 3, parallel, "0:old 1:old,unready 2", "-1"},
		{"rolling in parallel keeps a troubled one till then", 3, parallel, "0:old,unready 1:old 2", ""},
		{"partition", 3, partition(2), "0:old 1:old 2:old", "-2"},
		{"partition reached", 3, partition(2), "0:old 1:old 2", ""},
		{"below the partition the old is made anew", 3, partition(2), "0:old 2", "+1:old"},
		{"partition beyond the start", 2, both(from5, partition(1)), "5:old 6:old", "-6"},
		{"on delete", 3, onDelete, "0:old 1:old 2:old", ""},
		{"on delete makes the new", 3, onDelete, "0:old 1:old", "+2"},

		{"mended: pending", 3, nil, "0:old,pending", "-0"},
		{"mended: crashing", 3, nil, "0:old,crashing", "-0"},
		{"mended: never ready", 3, nil, "0:old,never-ready", "-0"},
		{"was ready once: waits", 3, nil, "0:old,unready 1:old", ""},
		{"a template given up half way", 3, nil, "0:old 1:old 2:given-up,unready", "-2"},
		{"a template given up, but it works", 3, nil, "0:old 1:given-up 2:given-up", "-2"},
		{"mended, below the partition", 3, partition(1), "0:old,crashing", ""},
		{"mended, on delete", 3, onDelete, "0:old,crashing", ""},
		{"mended, in parallel: all that are broken", 3, parallel, "0:old,crashing 1:old,pending 2:old,crashing", "-2 -1 -0"},
		{"crashing, of the new", 3, nil, "0:crashing", ""},
	} {
		set := newSet(c.replicas)
		set.Spec.MinReadySeconds = 10
		if c.change != nil {
			c.change(set)
		}
		if got := show(observe(set, "old", "new", parsePods(t, c.pods), now).decide()); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		name string
		pods string
		want appsv1.StatefulSetStatus
		next time.Duration
	}{
		{"empty", "", appsv1.StatefulSetStatus{CurrentRevision: "old"}, 0},
		{"midway", "0:old 1:old,unready 2:fresh", appsv1.StatefulSetStatus{Replicas: 3, ReadyReplicas: 2, AvailableReplicas: 1, CurrentReplicas: 2, UpdatedReplicas: 1, CurrentRevision: "old"}, 9 * time.Second},
		{"terminating", "0:old 1:old,going", appsv1.StatefulSetStatus{Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, CurrentReplicas: 1, CurrentRevision: "old"}, 0},
		{"complete", "0 1 2", appsv1.StatefulSetStatus{Replicas: 3, ReadyReplicas: 3, AvailableReplicas: 3, CurrentReplicas: 3, UpdatedReplicas: 3, CurrentRevision: "new"}, 0},
		{"one too many", "0 1 2 3", appsv1.StatefulSetStatus{Replicas: 4, ReadyReplicas: 4, AvailableReplicas: 4, UpdatedReplicas: 4, CurrentRevision: "old"}, 0},
	} {
		set := newSet(3)
		set.Spec.MinReadySeconds = 10
		c.want.ObservedGeneration, c.want.UpdateRevision = 1, "new"
		got, next := observe(set, "old", "new", parsePods(t, c.pods), now).status()
		if fmt.Sprint(got) != fmt.Sprint(c.want) || next != c.next {
			t.Errorf("%s:\ngot  %+v after %s\nwant %+v after %s", c.name, got, next, c.want, c.next)
		}
	}
}

func TestOrdinals(t *testing.T) {
	for name, want := range map[string]int{"web-0": 0, "web-12": 12, "web-": -1, "web": -1, "web-01": -1, "web--1": -1, "web-+1": -1, "web-a-0": -1, "other-0": -1, "web-99999999999": -1} {
		n, ok := ordinalOf("web", name)
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%s: %d, want %d", name, n, want)
		}
	}
}
