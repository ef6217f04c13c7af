package volumeattributesclassprotection

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const finalizer = "kubernetes.io/vac-protection"

type controller struct {
	client  kubernetes.Interface
	classes storagelisters.VolumeAttributesClassLister
	volumes runtime.Index[*corev1.PersistentVolume]
	claims  runtime.Index[*corev1.PersistentVolumeClaim]
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core, classes := d.Informers.Core().V1(), d.Informers.Storage().V1().VolumeAttributesClasses()
	c := &controller{client: d.Client, classes: classes.Lister()}
	var err error
	if c.volumes, err = runtime.NewIndex(core.PersistentVolumes().Informer(), "attributes-class", ofVolume); err != nil {
		return runtime.Controller{}, err
	}
	if c.claims, err = runtime.NewIndex(core.PersistentVolumeClaims().Informer(), "attributes-class", ofClaim); err != nil {
		return runtime.Controller{}, err
	}
	see := func(class *storagev1.VolumeAttributesClass) {
		if runtime.Protect(class, finalizer) != runtime.ProtectionKept {
			q.Add(class.Name)
		}
	}
	all := func(names []string) {
		for _, name := range names {
			q.Add(name)
		}
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(classes.Informer(), runtime.Handlers[*storagev1.VolumeAttributesClass]{
				Add: see, Update: func(_, n *storagev1.VolumeAttributesClass) { see(n) },
			}),
			runtime.On(core.PersistentVolumes().Informer(), runtime.Handlers[*corev1.PersistentVolume]{
				Update: func(o, _ *corev1.PersistentVolume) { all(ofVolume(o)) },
				Delete: func(v *corev1.PersistentVolume) { all(ofVolume(v)) },
			}),
			runtime.On(core.PersistentVolumeClaims().Informer(), runtime.Handlers[*corev1.PersistentVolumeClaim]{
				Update: func(o, _ *corev1.PersistentVolumeClaim) { all(ofClaim(o)) },
				Delete: func(claim *corev1.PersistentVolumeClaim) { all(ofClaim(claim)) },
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

// ofVolume returns the classes that the volume names.
func ofVolume(v *corev1.PersistentVolume) []string {
	if name := v.Spec.VolumeAttributesClassName; name != nil && *name != "" {
		return []string{*name}
	}
	return nil
}

// ofClaim returns the classes that the claim wants, has, or moves to.
func ofClaim(claim *corev1.PersistentVolumeClaim) (names []string) {
	for _, name := range []*string{claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names = append(names, *name)
		}
	}
	if m := claim.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	return names
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	next := class.DeepCopy()
	switch runtime.Protect(class, finalizer) {
	case runtime.ProtectionMissing:
		runtime.AddFinalizer(next, finalizer)
	case runtime.ProtectionDue:
		if len(c.volumes.Get(name)) > 0 || len(c.claims.Get(name)) > 0 {
			return 0, nil // their change brings it back
		}
		runtime.DropFinalizer(next, finalizer)
	default:
		return 0, nil
	}
	if _, err := c.client.StorageV1().VolumeAttributesClasses().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("set finalizer of volume attributes class %s: %w", name, err)
	}
	return 0, nil
}
