package deployment

import (
	"fmt"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// explain says what a Deployment waits for.
func (c *controller) explain(namespace, name string) ([]runtime.Wait, error) {
	d, err := c.deployments.Deployments(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	all, err := c.sets.ReplicaSets(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var sets []*appsv1.ReplicaSet
	for _, rs := range all {
		if metav1.IsControlledBy(rs, d) {
			sets = append(sets, rs)
		}
	}
	r := observe(d, sets, func(keep *appsv1.ReplicaSet) bool { return c.podsLeft(sets, keep) })
	waits := append(runtime.DeletionWaits(d), r.waits()...)
	if r.new != nil {
		waits = append(waits, runtime.PodsWait(c.pods.OwnedBy(r.new.UID))...)
	}
	return waits, nil
}

// waits says what the rollout waits for, but for its pods.
func (r rollout) waits() (waits []runtime.Wait) {
	const me = "controller deployment"
	add := func(by, format string, args ...any) {
		waits = append(waits, runtime.Wait{For: fmt.Sprintf(format, args...), By: by})
	}
	d := r.d
	if d.Spec.Paused {
		add("you", "its rollout to be resumed: spec.paused is set (kubectl rollout resume)")
	}
	if d.Status.ObservedGeneration < d.Generation {
		add(me, "its newest change to be seen")
	}
	if c := find(&d.Status, appsv1.DeploymentReplicaFailure); c != nil && c.Status == corev1.ConditionTrue {
		add("API server", "its pods to be admitted: %s: %s", c.Reason, c.Message)
	}
	if c := find(&d.Status, appsv1.DeploymentProgressing); c != nil && c.Status == corev1.ConditionFalse {
		add(me, "progress, and has none: %s: %s", c.Reason, c.Message)
	}
	if r.new == nil {
		if r.wantsNew() {
			if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType && r.oldPods {
				add("kubelet of their nodes", "the pods of its old replica sets to end (strategy Recreate)")
			} else {
				add(me, "its new replica set to be made")
			}
		}
		return waits
	}
	if n := *d.Spec.Replicas - r.new.Status.Replicas; n > 0 && !d.Spec.Paused {
		if *r.new.Spec.Replicas < *d.Spec.Replicas {
			add(me, "%d pods with the new template: it may make that many only as others become available (maxSurge %d, maxUnavailable %d)", n, surge(d), unavailable(d))
		} else {
			add("controller replicaset", "%d pods of replica set %s to be made", n, r.new.Name)
		}
	}
	for _, rs := range r.old {
		if rs.Status.Replicas > 0 {
			add(me, "%d pods of old replica set %s to go, as new ones become available", rs.Status.Replicas, rs.Name)
		}
	}
	return waits
}
