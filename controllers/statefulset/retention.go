package statefulset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// retention returns what becomes of claims when the set is deleted, and when it
// is scaled down.
func retention(set *appsv1.StatefulSet) (deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) {
	deleted, scaled = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if p := set.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		if p.WhenDeleted != "" {
			deleted = p.WhenDeleted
		}
		if p.WhenScaled != "" {
			scaled = p.WhenScaled
		}
	}
	return deleted, scaled
}

// owners returns the owner references that a claim is to have, going by the
// policy: that of the pod when the pod is to go for good (condemned) and its
// claim with it, that of the set when the claim goes with the set. References
// that are not ours stay.
func owners(set *appsv1.StatefulSet, pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, condemned bool) []metav1.OwnerReference {
	refs := slices.DeleteFunc(slices.Clone(claim.OwnerReferences), func(r metav1.OwnerReference) bool {
		return ours(set, r) || r.Kind == podKind.Kind && r.APIVersion == "v1" && isOfSet(set, r.Name)
	})
	if slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller }) {
		return claim.OwnerReferences // another controller's
	}
	deleted, scaled := retention(set)
	switch {
	case condemned && scaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		if pod != nil {
			refs = append(refs, *metav1.NewControllerRef(pod, podKind))
		}
	case deleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		refs = append(refs, *metav1.NewControllerRef(set, kind))
	}
	return refs
}

func ours(set *appsv1.StatefulSet, r metav1.OwnerReference) bool {
	return r.Kind == kind.Kind && r.APIVersion == kind.GroupVersion().String() && r.Name == set.Name
}

func isOfSet(set *appsv1.StatefulSet, pod string) bool {
	_, ok := ordinalOf(set.Name, pod)
	return ok
}

// doomed reports whether the garbage collector is about to delete a claim: its
// owner was an earlier pod of the name, gone for good, or it is being deleted. A
// new pod must not be given the claim.
func doomed(set *appsv1.StatefulSet, claim *corev1.PersistentVolumeClaim) bool {
	if claim.DeletionTimestamp != nil {
		return true
	}
	if _, scaled := retention(set); scaled != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
		return false
	}
	ref := metav1.GetControllerOf(claim)
	return ref != nil && ref.Kind == podKind.Kind && ref.APIVersion == "v1" && isOfSet(set, ref.Name)
}
