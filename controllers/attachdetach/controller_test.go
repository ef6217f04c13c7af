package attachdetach

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestVolumeMovesFromNodeToNode(t *testing.T) {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}},
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "claim"},
		},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", UID: "claim"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "v"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
			}}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
	}
	n1, n2 := nodeWith(true), nodeWith(true)
	n2.Name = "n2"
	c := runtimetest.New(t, volume, claim, n1, n2, pod("p", "n1"))
	c.Run(t, map[string]runtime.Builder{"attachdetach": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})

	// attacher plays the driver's part, kubelet the node's.
	attacher := func(node string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			va, err := c.StorageV1().VolumeAttachments().Get(t.Context(), attachmentName("h", "csi.example.com", node), metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			va.Status.Attached = true
			if _, err := c.StorageV1().VolumeAttachments().UpdateStatus(t.Context(), va, metav1.UpdateOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	kubelet := func(node string, inUse ...corev1.UniqueVolumeName) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			n, err := c.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			n.Status.VolumesInUse = inUse
			if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	attached := func(node string, want int) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			n, err := c.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
			if err != nil || len(n.Status.VolumesAttached) != want {
				return fmt.Sprintf("node %s has %v attached, %v", node, n.Status.VolumesAttached, err)
			}
			return ""
		})
	}
	attacher("n1")
	attached("n1", 1)
	unique := attachable{driver: "csi.example.com", handle: "h"}.unique()
	kubelet("n1", unique)

	// The pod moves on while the first node still has the volume mounted.
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("default").Create(t.Context(), pod("q", "n2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	list, err := c.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Spec.NodeName != "n1" {
		t.Fatalf("attachments while the first node has it mounted: %v, %v", list.Items, err)
	}
	kubelet("n1")
	attached("n1", 0)
	attacher("n2")
	attached("n2", 1)
	c.Settle(t)
	before := c.Writes()
	c.Settle(t)
	if c.Writes() != before {
		t.Error("writes although nothing changed")
	}
}

func TestDriversThatDoNotAttach(t *testing.T) {
	no := false
	c := runtimetest.New(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}})
	drivers := c.Informers.Storage().V1().CSIDrivers()
	if err := drivers.Informer().GetStore().Add(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}}); err != nil {
		t.Fatal(err)
	}
	ctl := &controller{drivers: drivers.Lister()}
	if ctl.needsAttach("csi.example.com") || !ctl.needsAttach("unknown.example.com") {
		t.Error("a driver attaches unless it says that it does not")
	}
}
