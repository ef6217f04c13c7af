package volumeexpansion

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	csitranslation "k8s.io/csi-translation-lib"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// resizer names the driver that is to resize the claim's volume.
const resizer = "volume.kubernetes.io/storage-resizer"

var translator = csitranslation.New()

type controller struct {
	client  kubernetes.Interface
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	events  record.EventRecorder
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{d.Client, core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister(), d.Recorder}
	return runtime.Controller{
		Sources: []runtime.Source{runtime.On(core.PersistentVolumeClaims().Informer(), runtime.Handlers[*corev1.PersistentVolumeClaim]{
			Add: func(claim *corev1.PersistentVolumeClaim) {
				if grows(claim) {
					q.Add(claim.Namespace + "/" + claim.Name)
				}
			},
			Update: func(o, n *corev1.PersistentVolumeClaim) {
				if grows(n) && (!grows(o) || o.Spec.Resources.Requests.Storage().Cmp(*n.Spec.Resources.Requests.Storage()) != 0) {
					q.Add(n.Namespace + "/" + n.Name)
				}
			},
		})},
		Synced:    []cache.InformerSynced{core.PersistentVolumes().Informer().HasSynced},
		Reconcile: c.reconcile,
	}, nil
}

// grows reports whether a bound claim asks for more than it has.
func grows(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound && claim.Spec.Resources.Requests.Storage().Cmp(*claim.Status.Capacity.Storage()) > 0
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !grows(claim) || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
		return 0, nil
	}
	if !translator.IsPVMigratable(v) {
		if claim.Annotations[resizer] == "" {
			c.events.Event(claim, corev1.EventTypeNormal, "ExternalExpanding", "waiting for an external controller to expand this PVC")
		}
		return 0, nil
	}
	plugin, err := translator.GetInTreePluginNameFromSpec(v, nil)
	if err != nil {
		return 0, fmt.Errorf("kind of volume %s: %w", v.Name, err)
	}
	driver, err := translator.GetCSINameFromInTreeName(plugin)
	if err != nil {
		return 0, fmt.Errorf("driver of volume %s: %w", v.Name, err)
	}
	if claim.Annotations[resizer] == driver {
		return 0, nil
	}
	next := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, resizer, driver)
	if _, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("name the resizer of claim %s: %w", key, err)
	}
	c.events.Eventf(claim, corev1.EventTypeNormal, "ExternalExpanding", "CSI migration enabled for %s; waiting for external resizer to expand the pvc", plugin)
	return 0, nil
}
