package persistentvolumeprotection

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func volume(name string, going bool, phase corev1.PersistentVolumePhase, finalizers ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}, Status: corev1.PersistentVolumeStatus{Phase: phase}}
	if going {
		now := metav1.Now()
		v.DeletionTimestamp = &now
	}
	return v
}

func TestVolumesInUseAreKept(t *testing.T) {
	c := runtimetest.New(t,
		volume("new", false, corev1.VolumeAvailable),
		volume("kept", false, corev1.VolumeBound, finalizer),
		volume("used", true, corev1.VolumeBound, finalizer),
		volume("free", true, corev1.VolumeReleased, "other", finalizer),
	)
	c.Run(t, map[string]runtime.Builder{"persistentvolumeprotection": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	for name, want := range map[string]bool{"new": true, "kept": true, "used": true, "free": false} {
		runtimetest.Eventually(t, func() string {
			v, err := c.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if runtime.HasFinalizer(v, finalizer) != want {
				return fmt.Sprintf("finalizers of %s: %v", name, v.Finalizers)
			}
			return ""
		})
	}
	c.Settle(t)
	if w := c.Writes(); w != 2 {
		t.Errorf("%d writes, want one for the new volume and one for the free one", w)
	}
}
