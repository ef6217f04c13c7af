package persistentvolumeclaimprotection

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

const finalizer = "kubernetes.io/pvc-protection"

type controller struct {
	client kubernetes.Interface
	claims corelisters.PersistentVolumeClaimLister
	pods   runtime.PodIndex
	clock  clock.PassiveClock
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	pods, err := runtime.NewPodIndex(core.Pods().Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	c := &controller{d.Client, core.PersistentVolumeClaims().Lister(), pods, d.Clock}
	used := func(pod *corev1.Pod) {
		for _, name := range runtime.ClaimNames(pod) {
			q.Add(pod.Namespace + "/" + name)
		}
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Own(q, core.PersistentVolumeClaims().Informer()),
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Add: used, Delete: used,
				Update: func(o, n *corev1.Pod) {
					if o.UID != n.UID {
						used(o)
					}
					if o.UID != n.UID || o.Spec.NodeName != n.Spec.NodeName || podstate.Terminal(o) != podstate.Terminal(n) || shutDown(o) != shutDown(n) {
						used(n)
					}
				},
			}),
		},
		Reconcile: c.reconcile,
	}, nil
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
	api := c.client.CoreV1().PersistentVolumeClaims(namespace)
	pods := c.pods.Naming(namespace, name)
	next := claim.DeepCopy()
	switch runtime.Protect(claim, finalizer) {
	case runtime.ProtectionMissing:
		runtime.AddFinalizer(next, finalizer)
	case runtime.ProtectionDue:
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return holds(p, claim) }) {
			return 0, nil // the pod's end brings the claim back
		}
		held, err := c.heldForSure(ctx, claim)
		if held || err != nil {
			return 0, err
		}
		runtime.DropFinalizer(next, finalizer)
	default:
		if claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound {
			inUse := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !podstate.Terminal(p) && names(p, claim) })
			if setUnused(next, !inUse, c.clock.Now()) {
				if _, err := api.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return 0, fmt.Errorf("note use of claim %s: %w", key, err)
				}
			}
		}
		return 0, nil
	}
	if _, err := api.Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("set finalizer of claim %s: %w", key, err)
	}
	return 0, nil
}

// heldForSure asks the API server whether a pod holds the claim.
func (c *controller) heldForSure(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	list, err := c.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list pods that may use claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return holds(&p, claim) }), nil
}

// holds reports whether the pod keeps the claim from being deleted: it has a
// node, where the volume may be mounted, even when its containers have ended.
func holds(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" || pod.Namespace != claim.Namespace {
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name ||
			v.Ephemeral != nil && !shutDown(pod) && runtime.EphemeralClaimName(pod, v) == claim.Name && metav1.IsControlledBy(claim, pod) {
			return true
		}
	}
	return false
}

// names reports whether the pod names the claim, and, for an ephemeral volume,
// whether the claim is the pod's.
func names(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name ||
			v.Ephemeral != nil && runtime.EphemeralClaimName(pod, v) == claim.Name && metav1.IsControlledBy(claim, pod) {
			return true
		}
	}
	return false
}

// shutDown reports whether the pod is deleted and its node has let go of it.
func shutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// setUnused brings the condition Unused up to date and reports whether it was
// not.
func setUnused(claim *corev1.PersistentVolumeClaim, unused bool, now time.Time) bool {
	want := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now),
		Reason: "PodUsingPVC", Message: "A pod is currently referencing this PVC",
	}
	if unused {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, "NoPodsUsingPVC", "No pods are currently referencing this PVC"
	}
	i := slices.IndexFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool { return c.Type == want.Type })
	switch {
	case i < 0:
		claim.Status.Conditions = append(claim.Status.Conditions, want)
	case claim.Status.Conditions[i].Status == want.Status:
		return false
	default:
		claim.Status.Conditions[i] = want
	}
	return true
}
