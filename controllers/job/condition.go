package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func find(st *batchv1.JobStatus, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}

func holds(st *batchv1.JobStatus, t batchv1.JobConditionType) bool {
	c := find(st, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// finished reports whether the Job has ended.
func finished(st *batchv1.JobStatus) bool {
	return holds(st, batchv1.JobComplete) || holds(st, batchv1.JobFailed)
}

// interim returns a copy of the condition that says how the Job is about to end,
// or nil.
func interim(st *batchv1.JobStatus) *batchv1.JobCondition {
	for _, t := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if holds(st, t) {
			return find(st, t).DeepCopy()
		}
	}
	return nil
}

// set changes a condition, unless it has the status already.
func set(st *batchv1.JobStatus, t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string, now time.Time) {
	at := metav1.NewTime(now)
	c := find(st, t)
	if c == nil {
		st.Conditions = append(st.Conditions, batchv1.JobCondition{Type: t})
		c = &st.Conditions[len(st.Conditions)-1]
	}
	if c.Status == status {
		return
	}
	c.Status, c.Reason, c.Message = status, reason, message
	c.LastProbeTime, c.LastTransitionTime = at, at
}

// finish adds the condition that ends the Job.
func finish(st *batchv1.JobStatus, outcome *batchv1.JobCondition, now time.Time) {
	if outcome.Type == batchv1.JobFailureTarget {
		set(st, batchv1.JobFailed, corev1.ConditionTrue, outcome.Reason, outcome.Message, now)
		return
	}
	set(st, batchv1.JobComplete, corev1.ConditionTrue, outcome.Reason, outcome.Message, now)
	st.CompletionTime = &metav1.Time{Time: now}
}
