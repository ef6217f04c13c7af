package volumeattributesclassprotection

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func class(name string, going bool, finalizers ...string) *storagev1.VolumeAttributesClass {
	c := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
	if going {
		now := metav1.Now()
		c.DeletionTimestamp = &now
	}
	return c
}

func TestClassesInUseAreKept(t *testing.T) {
	byVolume, byClaim := "by-volume", "by-claim"
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{VolumeAttributesClassName: &byVolume}}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: &byClaim},
		Status:     corev1.PersistentVolumeClaimStatus{ModifyVolumeStatus: &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "moved-to"}},
	}
	c := runtimetest.New(t, class("new", false), class(byVolume, true, finalizer), class(byClaim, true, finalizer),
		class("moved-to", true, finalizer), class("free", true, finalizer, "other"), v, claim)
	c.Run(t, map[string]runtime.Builder{"volumeattributesclassprotection": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	is := func(name string, want bool) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			got, err := c.StorageV1().VolumeAttributesClasses().Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && runtime.HasFinalizer(got, finalizer) != want {
				return fmt.Sprintf("finalizers of %s: %v", name, got.Finalizers)
			}
			if err != nil && want {
				return err.Error()
			}
			return ""
		})
	}
	for name, want := range map[string]bool{"new": true, byVolume: true, byClaim: true, "moved-to": true, "free": false} {
		is(name, want)
	}
	if err := c.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is(byVolume, false)
}
