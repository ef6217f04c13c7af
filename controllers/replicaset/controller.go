package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	appslisters "k8s.io/client-go/listers/apps/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/replicas"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	informer := d.Informers.Apps().V1().ReplicaSets()
	sets, api := informer.Lister(), d.Client.AppsV1()
	return replicas.New[*appsv1.ReplicaSet](d, q, informer.Informer(), replicas.Owner{
		Kind: kind,
		Get: func(namespace, name string) (*appsv1.ReplicaSet, apiruntime.Object, error) {
			rs, err := sets.ReplicaSets(namespace).Get(name)
			return rs, rs, err
		},
		Fresh: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return api.ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Adopters:          func(pod *corev1.Pod) []metav1.Object { return runtime.Objects(sets.GetPodReplicaSets(pod)) },
		Siblings:          func(rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet { return siblings(sets, rs) },
		CountsTerminating: true,
		UpdateStatus: func(ctx context.Context, rs *appsv1.ReplicaSet) error {
			_, err := api.ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
			return err
		},
	})
}

// siblings returns all ReplicaSets with the same controller as rs.
func siblings(sets appslisters.ReplicaSetLister, rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	owner := metav1.GetControllerOf(rs)
	if owner == nil {
		return []*appsv1.ReplicaSet{rs}
	}
	all, err := sets.ReplicaSets(rs.Namespace).List(labels.Everything())
	if err != nil {
		return []*appsv1.ReplicaSet{rs}
	}
	var out []*appsv1.ReplicaSet
	for _, s := range all {
		if ref := metav1.GetControllerOf(s); ref != nil && ref.UID == owner.UID {
			out = append(out, s)
		}
	}
	return out
}
