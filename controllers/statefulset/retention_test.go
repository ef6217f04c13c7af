package statefulset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func policy(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	return &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
}

func TestOwnersFollowThePolicy(t *testing.T) {
	const retain, del = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1", UID: "pod"}}
	for _, c := range []struct {
		policy           *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy
		kept, condemning string // the kind of the owner
	}{
		{nil, "", ""},
		{policy(retain, retain), "", ""},
		{policy(del, retain), "StatefulSet", "StatefulSet"},
		{policy(retain, del), "", "Pod"},
		{policy(del, del), "StatefulSet", "Pod"},
	} {
		set := newSet(1)
		set.Spec.PersistentVolumeClaimRetentionPolicy = c.policy
		for _, before := range [][]metav1.OwnerReference{
			nil,
			{*metav1.NewControllerRef(set, kind)},
			{*metav1.NewControllerRef(pod, podKind)},
			{{APIVersion: "v1", Kind: "Pod", Name: "web-1", UID: "an earlier one"}},
		} {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: before}}
			for condemned, want := range map[bool]string{false: c.kept, true: c.condemning} {
				got := ""
				refs := owners(set, pod, claim, condemned)
				for _, r := range refs {
					got += r.Kind
				}
				if got != want {
					t.Errorf("policy %v, before %v, condemned %v: owners %q, want %q", c.policy, before, condemned, got, want)
				}
			}
		}
	}
}

func TestClaimsOfOthersAreLeftAlone(t *testing.T) {
	set := newSet(1)
	set.Spec.PersistentVolumeClaimRetentionPolicy = policy(appsv1.DeletePersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
	yes := true
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "Other", Name: "x", UID: "x", Controller: &yes}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{foreign}}}
	if got := owners(set, nil, claim, false); fmt.Sprint(got) != fmt.Sprint(claim.OwnerReferences) {
		t.Errorf("owners %v", got)
	}
	// One that does not control is kept beside ours.
	claim.OwnerReferences[0].Controller = nil
	if got := owners(set, nil, claim, false); len(got) != 2 || got[0].Kind != "Other" {
		t.Errorf("owners %v", got)
	}
}
