package resourceclaim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// generatedLength is the longest prefix of a made claim's name: the API server
// adds five characters, and the whole is a DNS label.
const generatedLength = 57

// done reports whether the pod needs no claim any more: it has ended, or will
// never start.
func done(pod *corev1.Pod) bool {
	return podstate.Terminal(pod) || pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// claimNames returns the names of the claims that the pod has or names, as far as
// they are known.
func claimNames(pod *corev1.Pod) (names []string) {
	for _, pc := range pod.Spec.ResourceClaims {
		if name, _ := claimName(pod, pc); name != "" {
			names = append(names, name)
		}
	}
	if x := pod.Status.ExtendedResourceClaimStatus; x != nil && x.ResourceClaimName != "" {
		names = append(names, x.ResourceClaimName)
	}
	return names
}

// claimName returns the claim of an entry of the pod's list: "" when it is to be
// made still. needed is false for an entry whose template asks for no claim.
func claimName(pod *corev1.Pod, pc corev1.PodResourceClaim) (name string, needed bool) {
	if pc.ResourceClaimName != nil {
		return *pc.ResourceClaimName, true
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == pc.Name {
			if s.ResourceClaimName == nil {
				return "", false
			}
			return *s.ResourceClaimName, true
		}
	}
	return "", pc.ResourceClaimTemplateName != nil
}

// newClaim makes a pod's claim from its template.
func newClaim(pod *corev1.Pod, entry string, t *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := maps.Clone(t.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = entry
	prefix := pod.Name + "-" + entry + "-"
	if n := len(prefix); n > generatedLength {
		prefix = pod.Name[:len(pod.Name)*generatedLength/n] + "-" + entry[:len(entry)*generatedLength/n]
	}
	owner := metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))
	owner.BlockOwnerDeletion = nil
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix, Namespace: pod.Namespace, Labels: t.Spec.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: t.Spec.Spec,
	}
}

// reserved reports whether the claim is reserved for the pod.
func reserved(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
}

// release is what becomes of a claim when only some consumers are left.
type release struct {
	status    *resourcev1.ResourceClaimStatus // nil: as it is
	finalizer bool                            // to be taken away
}

// decide returns what to do about a claim of which the given consumers remain.
func decide(claim *resourcev1.ResourceClaim, remain []resourcev1.ResourceClaimConsumerReference) (r release) {
	ours := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	fewer := len(remain) < len(claim.Status.ReservedFor)
	if !fewer && (claim.DeletionTimestamp == nil || len(remain) > 0 || !ours) {
		return r
	}
	next := claim.Status.DeepCopy()
	next.ReservedFor = remain
	if len(remain) == 0 && ours {
		next.Allocation = nil
		r.finalizer = true
	}
	if fewer || claim.Status.Allocation != nil && next.Allocation == nil {
		r.status = next
	}
	return r
}
