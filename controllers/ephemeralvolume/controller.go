package ephemeralvolume

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

type controller struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	claims corelisters.PersistentVolumeClaimLister
	events record.EventRecorder
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{d.Client, core.Pods().Lister(), core.PersistentVolumeClaims().Lister(), d.Recorder}
	return runtime.Controller{
		Sources: []runtime.Source{
			// A pod's volumes never change.
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{Add: func(pod *corev1.Pod) {
				for i := range pod.Spec.Volumes {
					if pod.Spec.Volumes[i].Ephemeral != nil && !podstate.Terminal(pod) {
						q.Add(pod.Namespace + "/" + pod.Name)
						return
					}
				}
			}}),
			// A claim that is gone is made again, and one in the way has gone.
			runtime.On(core.PersistentVolumeClaims().Informer(), runtime.Handlers[*corev1.PersistentVolumeClaim]{Delete: func(claim *corev1.PersistentVolumeClaim) {
				pods, err := c.pods.Pods(claim.Namespace).List(labels.Everything())
				if err != nil {
					return
				}
				for _, pod := range pods {
					for i := range pod.Spec.Volumes {
						if v := &pod.Spec.Volumes[i]; v.Ephemeral != nil && runtime.EphemeralClaimName(pod, v) == claim.Name {
							q.Add(pod.Namespace + "/" + pod.Name)
						}
					}
				}
			}}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if pod.DeletionTimestamp != nil || podstate.Terminal(pod) {
		return 0, nil
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		if err := c.ensure(ctx, pod, v); err != nil {
			c.events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			errs = append(errs, fmt.Errorf("ephemeral volume %s of pod %s: %w", v.Name, key, err))
		}
	}
	return 0, errors.Join(errs...)
}

// ensure makes the claim of a volume when it is missing.
func (c *controller) ensure(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	name := runtime.EphemeralClaimName(pod, v)
	have, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err == nil {
		if !metav1.IsControlledBy(have, pod) {
			return fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", pod.Namespace, name, pod.Namespace, pod.Name)
		}
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: pod.Namespace, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	switch {
	case err == nil, runtime.NamespaceEnding(err):
		return nil
	case apierrors.IsAlreadyExists(err):
		return runtime.Silent(err) // the cache will show whose it is
	}
	return fmt.Errorf("create PVC %s: %w", name, err)
}
