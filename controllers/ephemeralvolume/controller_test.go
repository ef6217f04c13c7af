package ephemeralvolume

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "x"},
			}},
		}}}},
	}
}

func TestClaimsOfEphemeralVolumes(t *testing.T) {
	ended := pod("ended")
	ended.Status.Phase = corev1.PodFailed
	foreign := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "blocked-data", Namespace: "default"}}
	c := runtimetest.New(t, pod("p"), pod("blocked"), ended, foreign)
	c.Run(t, map[string]runtime.Builder{"ephemeralvolume": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	claims := c.CoreV1().PersistentVolumeClaims("default")
	is := func(name, owner string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			got, err := claims.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if ref := metav1.GetControllerOf(got); ref == nil || ref.Name != owner || got.Labels["a"] != "b" || got.Spec.VolumeName != "x" {
				return "the claim is not as the template says, or not the pod's"
			}
			return ""
		})
	}
	is("p-data", "p")
	runtimetest.Eventually(t, func() string {
		if !slices.ContainsFunc(c.Events.All(), func(e string) bool {
			return strings.Contains(e, "FailedBinding: ephemeral volume data: PVC default/blocked-data was not created for pod")
		}) {
			return "the blocked pod was not told"
		}
		return ""
	})
	if _, err := claims.Get(t.Context(), "ended-data", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a claim for a pod that has ended: %v", err)
	}
	// What was in the way goes.
	if err := claims.Delete(t.Context(), "blocked-data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is("blocked-data", "blocked")
}
