package runtime

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// maxExplained is how many pods of an owner are explained one by one.
const maxExplained = 5

// PodsWait says what pods wait for until they are ready; the first few one by
// one, the others by their number.
func PodsWait(pods []*corev1.Pod) (waits []Wait) {
	left := 0
	for _, pod := range pods {
		w := podWaits(pod)
		switch {
		case w == nil:
		case len(waits) < maxExplained:
			waits = append(waits, *w)
		default:
			left++
		}
	}
	if left > 0 {
		waits = append(waits, Wait{For: fmt.Sprintf("%d more pods that are not ready", left), By: "see kubectl get pods"})
	}
	return waits
}

// podWaits says what a pod waits for, or nil when it is ready or has ended well.
func podWaits(pod *corev1.Pod) *Wait {
	node := "kubelet on node " + pod.Spec.NodeName
	wait := func(by, format string, args ...any) *Wait {
		return &Wait{For: "pod " + pod.Name + " " + fmt.Sprintf(format, args...), By: by}
	}
	scheduled := podstate.Condition(pod, corev1.PodScheduled)
	switch {
	case pod.DeletionTimestamp != nil && len(pod.Finalizers) > 0 && podstate.Terminal(pod):
		return wait("who set the finalizers", "to go: finalizers %v", pod.Finalizers)
	case pod.DeletionTimestamp != nil:
		if pod.Spec.NodeName == "" {
			return wait("API server", "to go")
		}
		return wait(node, "to end: it is being deleted")
	case pod.Status.Phase == corev1.PodSucceeded:
		return nil
	case pod.Status.Phase == corev1.PodFailed:
		return wait(node, "which failed: %s %s", pod.Status.Reason, pod.Status.Message)
	case len(pod.Spec.SchedulingGates) > 0:
		return wait("who set the gates", "to be released for scheduling: gates %v", pod.Spec.SchedulingGates)
	case pod.Spec.NodeName == "" && scheduled != nil && scheduled.Message != "":
		return wait("scheduler", "to be scheduled: %s", scheduled.Message)
	case pod.Spec.NodeName == "":
		return wait("scheduler", "to be scheduled")
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing":
			return wait(node, "to start: container %s: %s %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message)
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return wait(node, "to start: container %s ended with code %d (%s)", s.Name, s.State.Terminated.ExitCode, s.State.Terminated.Reason)
		}
	}
	if podstate.Ready(pod) {
		return nil
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil && !s.Ready {
			return wait(node, "to be ready: container %s runs, its readiness or startup probe has not passed", s.Name)
		}
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if c := podstate.Condition(pod, gate.ConditionType); c == nil || c.Status != corev1.ConditionTrue {
			return wait("who sets the condition", "to be ready: readiness gate %s", gate.ConditionType)
		}
	}
	return wait(node, "to start")
}

// DeletionWaits says what the deletion of an object waits for.
func DeletionWaits(o metav1.Object) (waits []Wait) {
	if o.GetDeletionTimestamp() == nil {
		return nil
	}
	for _, f := range o.GetFinalizers() {
		w := Wait{For: "its deletion waits for finalizer " + f, By: "who set the finalizer"}
		if f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents {
			w.By = "controller garbagecollector"
		}
		waits = append(waits, w)
	}
	return waits
}
