package deployment

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestProgressThroughALife(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := deploymentOf(2, intstr.FromInt(1), intstr.FromInt(0))
	r := rollout{d: d}
	check := func(what string, created bool, createErr error, wantStatus corev1.ConditionStatus, wantReason string) time.Duration {
		t.Helper()
		s, after := r.status(created, createErr, now)
		d.Status = s
		c := find(&s, appsv1.DeploymentProgressing)
		if c == nil || c.Status != wantStatus || c.Reason != wantReason {
			t.Errorf("%s: condition %+v, want %s %s", what, c, wantStatus, wantReason)
		}
		return after
	}
	r.new = setOf("new", 0, 2, 0)
	after := check("created", true, nil, corev1.ConditionTrue, reasonCreated)
	if after < 600*time.Second || after > 602*time.Second {
		t.Errorf("looks again in %s, want just after the deadline", after)
	}
	now = now.Add(time.Minute)
	r.new = setOf("new", 0, 2, 1)
	check("one is up", false, nil, corev1.ConditionTrue, reasonUpdated)
	now = now.Add(599 * time.Second)
	check("before the deadline", false, nil, corev1.ConditionTrue, reasonUpdated)
	now = now.Add(2 * time.Second)
	if after := check("after the deadline", false, nil, corev1.ConditionFalse, reasonTimedOut); after != 0 {
		t.Errorf("timed out, and looks again in %s", after)
	}
	r.new = setOf("new", 0, 2, 2)
	check("all up after all", false, nil, corev1.ConditionTrue, reasonAvailable)
	r.new = setOf("new", 0, 2, 1)
	now = now.Add(time.Hour)
	check("a pod lost later is no lack of progress", false, nil, corev1.ConditionTrue, reasonAvailable)
	if c := find(&d.Status, appsv1.DeploymentAvailable); c == nil || c.Status != corev1.ConditionFalse {
		t.Errorf("available: %+v, want false with one of two", c)
	}
	r.new, r.old = setOf("newer", 0, 1, 0), []*appsv1.ReplicaSet{setOf("new", time.Hour, 2, 2)}
	check("next rollout", true, nil, corev1.ConditionTrue, reasonCreated)
	d.Spec.Paused = true
	check("paused", false, nil, corev1.ConditionUnknown, reasonPaused)
	now = now.Add(time.Hour)
	d.Spec.Paused = false
	check("resumed: the time of the pause does not count", false, nil, corev1.ConditionUnknown, reasonResumed)
}

func TestStatusWithoutChangeIsEqual(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := deploymentOf(2, intstr.FromInt(1), intstr.FromInt(0))
	r := rollout{d: d, new: setOf("new", 0, 2, 2)}
	d.Status, _ = r.status(true, nil, now)
	d.Status, _ = r.status(false, nil, now)
	again, _ := r.status(false, nil, now.Add(time.Hour))
	for i := range again.Conditions {
		if again.Conditions[i] != d.Status.Conditions[i] {
			t.Errorf("condition changes by itself: %+v, then %+v", d.Status.Conditions[i], again.Conditions[i])
		}
	}
}

func TestReplicaFailureIsPassedOn(t *testing.T) {
	d := deploymentOf(2, intstr.FromInt(1), intstr.FromInt(0))
	rs := setOf("new", 0, 2, 0)
	rs.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "quota", LastTransitionTime: metav1.Now()}}
	r := rollout{d: d, new: rs}
	d.Status, _ = r.status(false, nil, time.Now())
	if c := find(&d.Status, appsv1.DeploymentReplicaFailure); c == nil || c.Message != "quota" {
		t.Errorf("condition %+v", c)
	}
	rs.Status.Conditions = nil
	d.Status, _ = r.status(false, nil, time.Now())
	if c := find(&d.Status, appsv1.DeploymentReplicaFailure); c != nil {
		t.Errorf("still there: %+v", c)
	}
}
