package statefulset

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// claimWait is how long a pod waits before its claims, which are on their way
// out, are looked at again.
const claimWait = 2 * time.Second

// keep brings a pod's labels and the owners of its claims to what they are to
// be, and makes claims that a pod which does not run yet lacks.
func (c *controller) keep(ctx context.Context, set *appsv1.StatefulSet, n numbered) error {
	if n.pod == nil || n.pod.DeletionTimestamp != nil {
		return nil
	}
	if !identified(n.pod, n.ordinal) {
		pod := n.pod.DeepCopy()
		identify(pod, n.ordinal)
		if _, err := c.client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("label pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	if n.pod.Status.Phase == corev1.PodPending {
		if _, err := c.prepareClaims(ctx, set, n.ordinal); err != nil {
			return err
		}
	}
	return c.ownClaims(ctx, set, n, false)
}

// prepareClaims makes the claims of a number that are missing. It returns false
// when one is on its way out, so that a pod must not be given it.
func (c *controller) prepareClaims(ctx context.Context, set *appsv1.StatefulSet, ordinal int) (ready bool, err error) {
	ready = true
	for _, want := range newClaims(set, ordinal) {
		have, err := c.claims.PersistentVolumeClaims(want.Namespace).Get(want.Name)
		if err == nil {
			ready = ready && !doomed(set, have)
			continue
		}
		if !apierrors.IsNotFound(err) {
			return false, err
		}
		want.OwnerReferences = owners(set, nil, want, false)
		_, err = c.client.CoreV1().PersistentVolumeClaims(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
		switch {
		case err == nil:
			c.events.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s in StatefulSet %s success", want.Name, podName(set, ordinal), set.Name)
		case apierrors.IsAlreadyExists(err):
			return false, nil // the cache will show it
		case runtime.NamespaceEnding(err):
			return false, runtime.Silent(err)
		default:
			return false, fmt.Errorf("create claim %s/%s: %w", want.Namespace, want.Name, err)
		}
	}
	return ready, nil
}

// ownClaims gives the claims of a pod the owners that the retention policy asks
// for. condemned is whether the pod is about to go for good.
func (c *controller) ownClaims(ctx context.Context, set *appsv1.StatefulSet, n numbered, condemned bool) error {
	for i := range set.Spec.VolumeClaimTemplates {
		name := claimName(set, &set.Spec.VolumeClaimTemplates[i], n.ordinal)
		have, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		refs := owners(set, n.pod, have, condemned)
		if have.DeletionTimestamp != nil || equality.Semantic.DeepEqual(refs, have.OwnerReferences) {
			continue
		}
		want := have.DeepCopy()
		want.OwnerReferences = refs
		if _, err := c.client.CoreV1().PersistentVolumeClaims(set.Namespace).Update(ctx, want, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("set owners of claim %s/%s: %w", set.Namespace, name, err)
		}
	}
	return nil
}
