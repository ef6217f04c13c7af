package persistentvolumeprotection

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const finalizer = "kubernetes.io/pv-protection"

type controller struct {
	client  kubernetes.Interface
	volumes corelisters.PersistentVolumeLister
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	volumes := d.Informers.Core().V1().PersistentVolumes()
	c := &controller{d.Client, volumes.Lister()}
	see := func(v *corev1.PersistentVolume) {
		if runtime.Protect(v, finalizer) != runtime.ProtectionKept {
			q.Add(v.Name)
		}
	}
	return runtime.Controller{
		Sources: []runtime.Source{runtime.On(volumes.Informer(), runtime.Handlers[*corev1.PersistentVolume]{
			Add: see, Update: func(_, n *corev1.PersistentVolume) { see(n) },
		})},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	v, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	next := v.DeepCopy()
	switch runtime.Protect(v, finalizer) {
	case runtime.ProtectionMissing:
		runtime.AddFinalizer(next, finalizer)
	case runtime.ProtectionDue:
		if v.Status.Phase == corev1.VolumeBound {
			return 0, nil // its next change brings it back
		}
		runtime.DropFinalizer(next, finalizer)
	default:
		return 0, nil
	}
	if _, err := c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("set finalizer of volume %s: %w", name, err)
	}
	return 0, nil
}
