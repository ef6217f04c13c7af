package persistentvolumeclaimprotection

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func claim(name string, going bool, finalizers ...string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Finalizers: finalizers},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	if going {
		now := metav1.Now()
		c.DeletionTimestamp = &now
	}
	return c
}

func pod(name, node, of string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: of},
		}}}},
	}
}

func unused(c *corev1.PersistentVolumeClaim) corev1.ConditionStatus {
	for _, cond := range c.Status.Conditions {
		if cond.Type == corev1.PersistentVolumeClaimUnused {
			return cond.Status
		}
	}
	return ""
}

func TestClaimsInUseAreKept(t *testing.T) {
	ended := pod("ended", "n1", "by-an-ended-pod")
	ended.Status.Phase = corev1.PodSucceeded
	c := runtimetest.New(t,
		claim("new", false), claim("used", true, finalizer), claim("by-an-ended-pod", true, finalizer),
		claim("by-a-pod-without-a-node", true, finalizer), claim("free", true, finalizer, "other"), claim("idle", false, finalizer),
		pod("p", "n1", "used"), ended, pod("waits", "", "by-a-pod-without-a-node"),
	)
	c.Run(t, map[string]runtime.Builder{"persistentvolumeclaimprotection": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	is := func(name string, protected bool, use corev1.ConditionStatus) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			got, err := c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) && !protected {
				return ""
			}
			if err != nil {
				return err.Error()
			}
			if runtime.HasFinalizer(got, finalizer) != protected || unused(got) != use {
				return fmt.Sprintf("%s: finalizers %v, unused %q", name, got.Finalizers, unused(got))
			}
			return ""
		})
	}
	is("new", true, corev1.ConditionTrue)
	is("idle", true, corev1.ConditionTrue)
	is("used", true, "")
	is("by-an-ended-pod", true, "")
	is("by-a-pod-without-a-node", false, "")
	is("free", false, "")

	if _, err := c.CoreV1().Pods("default").Create(t.Context(), pod("q", "n1", "idle"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	is("idle", true, corev1.ConditionFalse)
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is("used", false, "")
	c.Settle(t)
	before := c.Writes()
	c.Settle(t)
	if c.Writes() != before {
		t.Error("writes although nothing changed")
	}
}
