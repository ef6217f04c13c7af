// Package podstate answers questions about a pod's state that several
// controllers ask.
package podstate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Condition returns the pod's condition of type t, or nil. The result points
// into pod.
func Condition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports whether the pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	c := Condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Terminal reports whether all containers have ended for good.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Active reports whether the pod counts as a replica: neither ended nor being
// deleted.
func Active(pod *corev1.Pod) bool {
	return !Terminal(pod) && pod.DeletionTimestamp == nil
}

// AvailableIn returns how long it takes until the pod has been ready for
// minReady: 0 when it is available now, and false when it is not ready.
func AvailableIn(pod *corev1.Pod, minReady time.Duration, now time.Time) (time.Duration, bool) {
	c := Condition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return 0, false
	}
	if minReady == 0 {
		return 0, true
	}
	if c.LastTransitionTime.IsZero() {
		return minReady, true
	}
	return max(0, c.LastTransitionTime.Add(minReady).Sub(now)), true
}

// Available reports whether the pod has been ready for minReadySeconds.
func Available(pod *corev1.Pod, minReadySeconds int32, now time.Time) bool {
	d, ready := AvailableIn(pod, time.Duration(minReadySeconds)*time.Second, now)
	return ready && d == 0
}

// Restarts returns the highest restart count among the pod's containers,
// restartable init containers included.
func Restarts(pod *corev1.Pod) int32 {
	var n int32
	for _, c := range pod.Status.ContainerStatuses {
		n = max(n, c.RestartCount)
	}
	for i, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways || i >= len(pod.Status.InitContainerStatuses) {
			continue
		}
		n = max(n, pod.Status.InitContainerStatuses[i].RestartCount)
	}
	return n
}
