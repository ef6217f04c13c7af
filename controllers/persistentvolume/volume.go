package persistentvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

func (c *controller) reconcileVolume(ctx context.Context, name string) error {
	v, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if v, err = c.migrateVolume(ctx, v); err != nil {
		return err
	}
	claim, err := c.claimOf(ctx, v)
	if err != nil {
		return err
	}
	step := decideVolume(v, claim)
	if step.claim {
		c.queue.Add(v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name)
	}
	if step.unbind {
		return c.unbind(ctx, v)
	}
	message := ""
	if step.notice != nil {
		message = step.notice.message
	}
	if step.phase != "" {
		if _, err := c.setVolumePhase(ctx, v, step.phase, message); err != nil {
			return err
		}
	}
	if step.notice != nil {
		c.said.say(v, *step.notice)
	}
	return nil
}

// claimOf returns the claim that the volume is bound to, by name and UID, or
// nil when it is gone. The API server is asked before that is believed, for the
// cache of claims may lag behind the one of volumes.
func (c *controller) claimOf(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return nil, nil
	}
	claim, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err == nil && claim.UID == ref.UID {
		return claim, nil
	}
	if v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed {
		return nil, nil // it was asked then
	}
	claim, err = c.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read claim %s/%s of volume %s: %w", ref.Namespace, ref.Name, v.Name, err)
	case claim.UID != ref.UID:
		return nil, nil
	}
	return claim, nil
}

// unbind frees a volume whose claim took another one. One that a person promised
// to the claim stays promised.
func (c *controller) unbind(ctx context.Context, v *corev1.PersistentVolume) error {
	next := v.DeepCopy()
	if _, ok := v.Annotations[volume.AnnBoundByController]; ok {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, volume.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
	}
	updated, err := c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("free volume %s: %w", v.Name, err)
	}
	_, err = c.setVolumePhase(ctx, updated, corev1.VolumeAvailable, "")
	return err
}
