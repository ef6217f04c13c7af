package tainteviction

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// verdict is what is to become of a pod.
type verdict int

const (
	stay  verdict = iota // for as long as things are as they are
	wait                 // evict at a time
	evict                // now
)

// judge decides about a pod on a node with the given taints. since gives when a
// taint began to count, for those that do not say.
func judge(pod *corev1.Pod, taints []corev1.Taint, since func(*corev1.Taint) time.Time, now time.Time) (verdict, time.Time) {
	var at time.Time
	limited := false
	for i := range taints {
		t := &taints[i]
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		d, ok := tolerated(pod.Spec.Tolerations, t)
		if !ok {
			return evict, now
		}
		if d < 0 {
			continue
		}
		end := start(pod, t, since).Add(d)
		if !limited || end.Before(at) {
			limited, at = true, end
		}
	}
	switch {
	case !limited:
		return stay, time.Time{}
	case !at.After(now):
		return evict, now
	}
	return wait, at
}

// start is when the pod met the taint: the later of the two.
func start(pod *corev1.Pod, t *corev1.Taint, since func(*corev1.Taint) time.Time) time.Time {
	var at time.Time
	if t.TimeAdded != nil {
		at = t.TimeAdded.Time
	} else {
		at = since(t)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// tolerated returns how long the taint is tolerated: for ever when negative. Of
// several tolerations the shortest counts. ok is false when there is none.
func tolerated(tolerations []corev1.Toleration, t *corev1.Taint) (d time.Duration, ok bool) {
	d = -1
	for i := range tolerations {
		tol := &tolerations[i]
		if !matches(tol, t) {
			continue
		}
		ok = true
		if tol.TolerationSeconds != nil {
			s := max(0, time.Duration(*tol.TolerationSeconds)*time.Second)
			if d < 0 || s < d {
				d = s
			}
		}
	}
	return d, ok
}

// matches follows the API's definition of a toleration.
func matches(tol *corev1.Toleration, t *corev1.Taint) bool {
	if tol.Effect != "" && tol.Effect != t.Effect || tol.Key != "" && tol.Key != t.Key {
		return false
	}
	switch tol.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return tol.Key != "" && tol.Value == t.Value
	case corev1.TolerationOpGt, corev1.TolerationOpLt:
		have, err1 := strconv.ParseInt(t.Value, 10, 64)
		bound, err2 := strconv.ParseInt(tol.Value, 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		return tol.Operator == corev1.TolerationOpGt && have > bound || tol.Operator == corev1.TolerationOpLt && have < bound
	}
	return false
}
