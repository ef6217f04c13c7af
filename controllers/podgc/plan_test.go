package podgc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	base := time.Unix(1e9, 0)
	deleted := metav1.NewTime(base)
	pod := func(name, node string, going bool, phase corev1.PodPhase, age time.Duration) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(base.Add(-age))}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
		if going {
			p.DeletionTimestamp = &deleted
		}
		return p
	}
	out := []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	ready := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	nodes := map[string]*corev1.Node{
		"up":        {Status: ready},
		"off":       {Spec: corev1.NodeSpec{Taints: out}},
		"off-alive": {Spec: corev1.NodeSpec{Taints: out}, Status: ready},
		"lost":      {},
	}
	evicted := pod("evicted", "up", false, corev1.PodFailed, time.Minute)
	evicted.Status.Reason = "Evicted"
	pods := []*corev1.Pod{
		pod("unbound-going", "", true, corev1.PodPending, 0),
		pod("unbound", "", false, corev1.PodPending, 0),
		pod("running", "up", false, corev1.PodRunning, 0),
		pod("going", "up", true, corev1.PodRunning, 0),
		pod("orphan", "deleted", false, corev1.PodRunning, 0),
		pod("perhaps", "just-missing", false, corev1.PodRunning, 0),
		pod("off-going", "off", true, corev1.PodRunning, 0),
		pod("off-running", "off", false, corev1.PodRunning, 0),
		pod("off-alive-going", "off-alive", true, corev1.PodRunning, 0),
		pod("lost-going", "lost", true, corev1.PodRunning, 0),
		pod("ended-old", "up", false, corev1.PodSucceeded, 3*time.Hour),
		pod("ended-new", "up", false, corev1.PodFailed, time.Hour),
		evicted,
	}
	var got []string
	for _, v := range plan(pods, nodes, func(n string) bool { return n == "deleted" }, 1) {
		got = append(got, v.pod.Name)
	}
	slices.Sort(got)
	if want := "[ended-old evicted off-going orphan unbound-going]"; fmt.Sprint(got) != want {
		t.Errorf("victims %v, want %s", got, want)
	}
	if n := len(plan(pods[10:], nodes, nil, -1)); n != 0 {
		t.Errorf("%d ended pods deleted without a threshold", n)
	}
}
