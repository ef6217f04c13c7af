package persistentvolume

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
)

var everything = labels.Everything()

// translator knows which CSI drivers took over from provisioners and volumes
// that were once part of Kubernetes.
var translator = csitranslation.New()

// csiName returns the CSI driver in place of an in-tree provisioner, or "".
func csiName(provisioner string) string {
	name, err := translator.GetCSINameFromInTreeName(provisioner)
	if err != nil {
		return ""
	}
	return name
}

// provisionerName returns the name under which the class' provisioner watches.
func provisionerName(c *storagev1.StorageClass) string {
	if name := csiName(c.Provisioner); name != "" {
		return name
	}
	return c.Provisioner
}

// defaultClass returns the class of claims that name none, or nil: of several
// the newest, and of equally new ones the first by name.
func defaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, c := range classes {
		if c.Annotations[defaultClassAnnotation] != "true" && c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if best == nil || c.CreationTimestamp.After(best.CreationTimestamp.Time) ||
			c.CreationTimestamp.Equal(&best.CreationTimestamp) && c.Name < best.Name {
			best = c
		}
	}
	return best
}

// setProvisioner tells an external provisioner that the claim is its.
func (c *controller) setProvisioner(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (*corev1.PersistentVolumeClaim, error) {
	if claim.Annotations[volume.AnnStorageProvisioner] == name && claim.Annotations[volume.AnnBetaStorageProvisioner] == name {
		return claim, nil
	}
	next := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnBetaStorageProvisioner, name)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnStorageProvisioner, name)
	return c.updateClaim(ctx, next)
}

// migrateClaim notes on a claim of an in-tree provisioner which CSI driver takes
// care of it.
func (c *controller) migrateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	by := claim.Annotations[volume.AnnStorageProvisioner]
	if by == "" {
		by = claim.Annotations[volume.AnnBetaStorageProvisioner]
	}
	name := csiName(by)
	if name == "" || claim.Annotations[volume.AnnMigratedTo] == name {
		return claim, nil
	}
	next := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnMigratedTo, name)
	return c.updateClaim(ctx, next)
}

// migrateVolume notes on a volume of an in-tree provisioner which CSI driver
// takes care of it, and gives it no finalizer that nobody would take away.
func (c *controller) migrateVolume(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	next := v.DeepCopy()
	if name := csiName(v.Annotations[volume.AnnDynamicallyProvisioned]); name != "" {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnMigratedTo, name)
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == volume.PVDeletionInTreeProtectionFinalizer })
	}
	if equality.Semantic.DeepEqual(v, next) {
		return v, nil
	}
	updated, err := c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("note the driver of volume %s: %w", v.Name, err)
	}
	return updated, nil
}
