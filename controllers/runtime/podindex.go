package runtime

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// PodIndex finds pods by their controller, their node or their claims without a
// walk through all of them. The pods are shared and must not be changed.
type PodIndex struct{ owner, node, claim Index[*corev1.Pod] }

// NewPodIndex adds the indexes to the pod informer, once for all its users.
func NewPodIndex(pods cache.SharedIndexInformer) (x PodIndex, err error) {
	if x.owner, err = NewIndex(pods, "owner", func(pod *corev1.Pod) []string {
		if ref := metav1.GetControllerOf(pod); ref != nil {
			return []string{string(ref.UID)}
		}
		return []string{orphans(pod.Namespace)}
	}); err != nil {
		return x, err
	}
	if x.node, err = NewIndex(pods, "node", func(pod *corev1.Pod) []string {
		if pod.Spec.NodeName == "" {
			return nil
		}
		return []string{pod.Spec.NodeName}
	}); err != nil {
		return x, err
	}
	x.claim, err = NewIndex(pods, "claim", func(pod *corev1.Pod) []string {
		names := ClaimNames(pod)
		for i := range names {
			names[i] = pod.Namespace + "/" + names[i]
		}
		return names
	})
	return x, err
}

// orphans is an index value that no UID can have.
func orphans(namespace string) string { return "orphans/" + namespace }

// OwnedBy returns the pods whose controller has the UID.
func (x PodIndex) OwnedBy(uid types.UID) []*corev1.Pod { return x.owner.Get(string(uid)) }

// Orphans returns the namespace's pods without a controller.
func (x PodIndex) Orphans(namespace string) []*corev1.Pod { return x.owner.Get(orphans(namespace)) }

// OnNode returns the pods bound to the node.
func (x PodIndex) OnNode(node string) []*corev1.Pod { return x.node.Get(node) }

// Naming returns the pods that name the PersistentVolumeClaim, be it the claim
// of an ephemeral volume.
func (x PodIndex) Naming(namespace, claim string) []*corev1.Pod {
	return x.claim.Get(namespace + "/" + claim)
}

// ClaimNames returns the names of the PersistentVolumeClaims that a pod names,
// those of its ephemeral volumes too.
func ClaimNames(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, EphemeralClaimName(pod, v))
		}
	}
	return names
}

// EphemeralClaimName returns the name of the claim of a pod's ephemeral volume.
func EphemeralClaimName(pod *corev1.Pod, v *corev1.Volume) string { return pod.Name + "-" + v.Name }
