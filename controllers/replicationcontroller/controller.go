package replicationcontroller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/replicas"
)

var kind = corev1.SchemeGroupVersion.WithKind("ReplicationController")

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	informer := d.Informers.Core().V1().ReplicationControllers()
	rcs, api := informer.Lister(), d.Client.CoreV1()
	return replicas.New[*corev1.ReplicationController](d, q, informer.Informer(), replicas.Owner{
		Kind: kind,
		Get: func(namespace, name string) (*appsv1.ReplicaSet, apiruntime.Object, error) {
			rc, err := rcs.ReplicationControllers(namespace).Get(name)
			if err != nil {
				return nil, nil, err
			}
			return view(rc), rc, nil
		},
		Fresh: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return api.ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Adopters: func(pod *corev1.Pod) []metav1.Object {
			return runtime.Objects(rcs.GetPodControllers(pod))
		},
		Siblings: func(rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet { return []*appsv1.ReplicaSet{rs} },
		UpdateStatus: func(ctx context.Context, rs *appsv1.ReplicaSet) error {
			rc, err := rcs.ReplicationControllers(rs.Namespace).Get(rs.Name)
			if err != nil {
				return err
			}
			next := rc.DeepCopy()
			// Of the version that the status was worked out from: a later one is a conflict.
			next.ResourceVersion = rs.ResourceVersion
			next.Status = statusOf(rs)
			_, err = api.ReplicationControllers(rs.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			return err
		},
	})
}

// view shows a ReplicationController as a ReplicaSet. It shares what rc holds.
func view(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	one := int32(1)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas, ReadyReplicas: rc.Status.ReadyReplicas,
			AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rs.Spec.Replicas == nil {
		rs.Spec.Replicas = &one
	}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rs
}

// statusOf turns the status of a view back.
func statusOf(rs *appsv1.ReplicaSet) corev1.ReplicationControllerStatus {
	s := corev1.ReplicationControllerStatus{
		Replicas: rs.Status.Replicas, FullyLabeledReplicas: rs.Status.FullyLabeledReplicas, ReadyReplicas: rs.Status.ReadyReplicas,
		AvailableReplicas: rs.Status.AvailableReplicas, ObservedGeneration: rs.Status.ObservedGeneration,
	}
	for _, c := range rs.Status.Conditions {
		s.Conditions = append(s.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return s
}
