package runtime

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsWait(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1"}}
		change(p)
		return p
	}
	for name, x := range map[string]struct {
		pod       *corev1.Pod
		words, by string
	}{
		"no node": {pod(func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
		}), "0/3 nodes are available", "scheduler"},
		"gated": {pod(func(p *corev1.Pod) {
			p.Spec.NodeName, p.Spec.SchedulingGates = "", []corev1.PodSchedulingGate{{Name: "example.com/x"}}
		}), "example.com/x", "who set the gates"},
		"no image": {pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
		}), "ImagePullBackOff", "kubelet on node n1"},
		"not ready": {pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}), "readiness or startup probe", "kubelet on node n1"},
		"deleted": {pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), "being deleted", "kubelet on node n1"},
		"ready": {pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}), "", ""},
		"ended": {pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "", ""},
	} {
		waits := PodsWait([]*corev1.Pod{x.pod})
		if x.words == "" {
			if len(waits) > 0 {
				t.Errorf("%s: %v", name, waits)
			}
			continue
		}
		if len(waits) != 1 || !strings.Contains(waits[0].For, x.words) || waits[0].By != x.by {
			t.Errorf("%s: %v", name, waits)
		}
	}
	many := make([]*corev1.Pod, 8)
	for i := range many {
		many[i] = pod(func(p *corev1.Pod) { p.Spec.NodeName = "" })
	}
	if waits := PodsWait(many); len(waits) != maxExplained+1 || !strings.HasPrefix(waits[maxExplained].For, "3 more pods") {
		t.Errorf("eight pods: %v", waits)
	}
}
