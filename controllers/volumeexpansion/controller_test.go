package volumeexpansion

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func claim(name, asks, has string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "of-" + name,
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(asks)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(has)}},
	}
}

func volume(of string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "of-" + of},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: source,
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: of, UID: types.UID(of)},
		},
	}
}

func TestGrowingClaimsGoToTheirResizer(t *testing.T) {
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}}
	moved := corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	c := runtimetest.New(t, claim("grows", "2Gi", "1Gi"), volume("grows", csi), claim("fits", "1Gi", "1Gi"), volume("fits", csi),
		claim("old", "2Gi", "1Gi"), volume("old", moved))
	c.Run(t, map[string]runtime.Builder{"volumeexpansion": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	runtimetest.Eventually(t, func() string {
		got, err := c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "old", metav1.GetOptions{})
		if err != nil || got.Annotations[resizer] != "ebs.csi.aws.com" {
			return "the claim's resizer is not named"
		}
		if !slices.Contains(c.Events.All(), "ExternalExpanding: waiting for an external controller to expand this PVC") {
			return "the claim was not told for whom it waits"
		}
		return ""
	})
	c.Settle(t)
	if w := c.Writes(); w != 1 {
		t.Errorf("%d writes, want the annotation only", w)
	}
}
