package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the conditions; kubectl rollout status knows some of them.
const (
	reasonCreated      = "NewReplicaSetCreated"
	reasonCreateFailed = "ReplicaSetCreateError"
	reasonFound        = "FoundNewReplicaSet"
	reasonUpdated      = "ReplicaSetUpdated"
	reasonAvailable    = "NewReplicaSetAvailable"
	reasonTimedOut     = "ProgressDeadlineExceeded"
	reasonPaused       = "DeploymentPaused"
	reasonResumed      = "DeploymentResumed"
	reasonMinimum      = "MinimumReplicasAvailable"
	reasonNoMinimum    = "MinimumReplicasUnavailable"
)

// status computes the Deployment's status from its ReplicaSets, and when to
// look again for lack of progress, 0 for never. created is whether the new
// ReplicaSet was created just now, createErr why it could not be.
func (r rollout) status(created bool, createErr error, now time.Time) (appsv1.DeploymentStatus, time.Duration) {
	d := r.d
	s := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation,
		CollisionCount:     d.Status.CollisionCount,
		Conditions:         slices.Clone(d.Status.Conditions),
	}
	for _, rs := range r.all() {
		s.Replicas += rs.Status.Replicas
		s.ReadyReplicas += rs.Status.ReadyReplicas
		s.AvailableReplicas += rs.Status.AvailableReplicas
		if rs.Status.TerminatingReplicas != nil {
			if s.TerminatingReplicas == nil {
				s.TerminatingReplicas = new(int32)
			}
			*s.TerminatingReplicas += *rs.Status.TerminatingReplicas
		}
	}
	if r.new != nil {
		s.UpdatedReplicas = r.new.Status.Replicas
	}
	s.UnavailableReplicas = max(0, total(r.all())-s.AvailableReplicas)
	if s.AvailableReplicas >= *d.Spec.Replicas-unavailable(d) {
		set(&s, appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonMinimum, "Deployment has minimum availability.", now)
	} else {
		set(&s, appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonNoMinimum, "Deployment does not have minimum availability.", now)
	}
	r.failure(&s)
	return s, r.progress(&s, created, createErr, now)
}

// progress keeps the condition Progressing.
func (r rollout) progress(s *appsv1.DeploymentStatus, created bool, createErr error, now time.Time) time.Duration {
	d, before := r.d, find(&r.d.Status, appsv1.DeploymentProgressing)
	if d.Spec.ProgressDeadlineSeconds == nil || *d.Spec.ProgressDeadlineSeconds == math.MaxInt32 {
		remove(s, appsv1.DeploymentProgressing)
		return 0
	}
	what := fmt.Sprintf("Deployment %q", d.Name)
	if r.new != nil {
		what = fmt.Sprintf("ReplicaSet %q", r.new.Name)
	}
	reason := ""
	if before != nil {
		reason = before.Reason
	}
	switch {
	case createErr != nil:
		set(s, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateFailed, createErr.Error(), now)
		return 0
	case created:
		set(s, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonCreated, fmt.Sprintf("Created new replica set %q", r.new.Name), now)
	case d.Spec.Paused:
		if reason != reasonTimedOut {
			set(s, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused", now)
		}
		return 0
	case reason == reasonPaused:
		// The deadline counts anew from here.
		set(s, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed", now)
	case before == nil && r.new != nil:
		set(s, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFound, fmt.Sprintf("Found new replica set %q", r.new.Name), now)
	case s.Replicas == s.UpdatedReplicas && reason == reasonAvailable:
		return 0 // no rollout is on; a lost pod is not a lack of progress
	}
	switch {
	case complete(d, s):
		set(s, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonAvailable, what+" has successfully progressed.", now)
		return 0
	case created || reason == reasonPaused:
	case progressed(&d.Status, s):
		// Only the time of the last update tells of more progress of one kind.
		at := metav1.NewTime(now)
		c := appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: reasonUpdated,
			Message: what + " is progressing.", LastUpdateTime: at, LastTransitionTime: at,
		}
		if before != nil && before.Status == corev1.ConditionTrue {
			c.LastTransitionTime = before.LastTransitionTime
		}
		remove(s, appsv1.DeploymentProgressing)
		s.Conditions = append(s.Conditions, c)
	case before != nil && reason != reasonAvailable && !now.Before(deadline(d, before)):
		set(s, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut, what+" has timed out progressing.", now)
	}
	c := find(s, appsv1.DeploymentProgressing)
	if c == nil || c.Reason == reasonTimedOut {
		return 0
	}
	// A second more, for condition times are whole seconds.
	return max(time.Second, deadline(d, c).Sub(now)+time.Second)
}

func deadline(d *appsv1.Deployment, c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// complete reports whether all replicas are of the new template and available.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	want := *d.Spec.Replicas
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want && s.ObservedGeneration >= d.Generation
}

func progressed(before, now *appsv1.DeploymentStatus) bool {
	return now.UpdatedReplicas > before.UpdatedReplicas ||
		now.Replicas-now.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		now.ReadyReplicas > before.ReadyReplicas ||
		now.AvailableReplicas > before.AvailableReplicas
}

// failure passes on why a ReplicaSet cannot make pods, the new one's first.
func (r rollout) failure(s *appsv1.DeploymentStatus) {
	sets := r.all()
	slices.Reverse(sets)
	for _, rs := range sets {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				set(s, appsv1.DeploymentReplicaFailure, c.Status, c.Reason, c.Message, c.LastTransitionTime.Time)
				return
			}
		}
	}
	remove(s, appsv1.DeploymentReplicaFailure)
}

func find(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func remove(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

// set replaces a condition, unless one of the same status and reason is there.
func set(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string, now time.Time) {
	at := metav1.NewTime(now)
	c := appsv1.DeploymentCondition{Type: t, Status: status, Reason: reason, Message: message, LastUpdateTime: at, LastTransitionTime: at}
	if old := find(s, t); old != nil {
		if old.Status == status && old.Reason == reason {
			return
		}
		if old.Status == status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	remove(s, t)
	s.Conditions = append(s.Conditions, c)
}
