package persistentvolume

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/volume"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func run(t *testing.T, objects ...apiruntime.Object) (*runtimetest.Cluster, *runtime.Group) {
	t.Helper()
	c := runtimetest.New(t, objects...)
	g := c.Run(t, map[string]runtime.Builder{"persistentvolume": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	return c, g
}

func claimIs(t *testing.T, c *runtimetest.Cluster, name string, phase corev1.PersistentVolumeClaimPhase, of string) *corev1.PersistentVolumeClaim {
	t.Helper()
	var claim *corev1.PersistentVolumeClaim
	runtimetest.Eventually(t, func() string {
		var err error
		if claim, err = c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if claim.Status.Phase != phase || claim.Spec.VolumeName != of {
			return fmt.Sprintf("claim %s is %s, of volume %q", name, claim.Status.Phase, claim.Spec.VolumeName)
		}
		return ""
	})
	return claim
}

func volumeIs(t *testing.T, c *runtimetest.Cluster, name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	t.Helper()
	var v *corev1.PersistentVolume
	runtimetest.Eventually(t, func() string {
		var err error
		if v, err = c.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if v.Status.Phase != phase {
			return fmt.Sprintf("volume %s is %s", name, v.Status.Phase)
		}
		return ""
	})
	return v
}

func TestALifeOfAVolume(t *testing.T) {
	c, _ := run(t, newVolume("big", "5Gi"), newVolume("fits", "2Gi"), newVolume("small", "1Mi"))
	volumeIs(t, c, "fits", corev1.VolumeAvailable)
	if _, err := c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), newClaim("c"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := claimIs(t, c, "c", corev1.ClaimBound, "fits")
	if claim.Annotations[volume.AnnBindCompleted] != "yes" || claim.Annotations[volume.AnnBoundByController] != "yes" {
		t.Errorf("annotations of the claim: %v", claim.Annotations)
	}
	if size := claim.Status.Capacity[corev1.ResourceStorage]; size.String() != "2Gi" {
		t.Errorf("capacity of the claim: %s", size.String())
	}
	if v := volumeIs(t, c, "fits", corev1.VolumeBound); v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
		t.Errorf("claim of the volume: %v", v.Spec.ClaimRef)
	}
	c.Settle(t)
	before := c.Writes()
	c.Settle(t)
	if c.Writes() != before {
		t.Error("writes although nothing changed")
	}
	if err := c.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	volumeIs(t, c, "fits", corev1.VolumeReleased)
}

func TestBindingBegunByAnEarlierLeaderIsFinished(t *testing.T) {
	half := newVolume("half", "5Gi", claimedBy("c", "same"), func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{volume.AnnBoundByController: "yes"}
	})
	c, _ := run(t, newVolume("better", "1Gi"), half, newClaim("c"))
	claimIs(t, c, "c", corev1.ClaimBound, "half")
	if v := volumeIs(t, c, "better", corev1.VolumeAvailable); v.Spec.ClaimRef != nil {
		t.Errorf("a second volume went to the claim: %v", v.Spec.ClaimRef)
	}
}

func TestTwoClaimsAndOneVolume(t *testing.T) {
	first, second := newClaim("first"), newClaim("second")
	second.UID = "uid-of-second"
	c, _ := run(t, newVolume("v", "1Gi"), first, second)
	c.Settle(t)
	bound := 0
	for _, name := range []string{"first", "second"} {
		claim, err := c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if claim.Spec.VolumeName != "" {
			bound++
		}
	}
	if bound != 1 {
		t.Errorf("%d claims have the volume", bound)
	}
}

func TestExternalProvisionerIsAsked(t *testing.T) {
	late := class("late", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer)
	c, g := run(t, late, newClaim("c", ofStorageClass("late")))
	said := func(what string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			if !slices.ContainsFunc(c.Events.All(), func(e string) bool { return strings.HasPrefix(e, what) }) {
				return fmt.Sprintf("no event %q in %q", what, c.Events.All())
			}
			return ""
		})
	}
	said("WaitForFirstConsumer: waiting for first consumer to be created before binding")
	waits, err := g.Explain("persistentvolume", "default", "c")
	if err != nil || len(waits) != 1 || !strings.Contains(waits[0].For, "a pod that uses it") {
		t.Errorf("explained as %v, %v", waits, err)
	}
	claim := claimIs(t, c, "c", corev1.ClaimPending, "")
	claim.Annotations = map[string]string{volume.AnnSelectedNode: "n1"} // by the scheduler
	if _, err := c.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	said("ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'csi.example.com'")
	claim = claimIs(t, c, "c", corev1.ClaimPending, "")
	if claim.Annotations[volume.AnnStorageProvisioner] != "csi.example.com" {
		t.Errorf("annotations of the claim: %v", claim.Annotations)
	}
	// The provisioner answers.
	made := newVolume("pvc-1", "1Gi", claimedBy("c", "same"), func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "late" })
	if _, err := c.CoreV1().PersistentVolumes().Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claimIs(t, c, "c", corev1.ClaimBound, "pvc-1")
	runtimetest.Eventually(t, func() string { // its view may be older
		if waits, err := g.Explain("persistentvolume", "default", "c"); err != nil || len(waits) > 0 {
			return fmt.Sprintf("a bound claim waits for %v, %v", waits, err)
		}
		return ""
	})
}

func TestAClaimGetsTheDefaultClassLater(t *testing.T) {
	c, _ := run(t, newClaim("c"))
	c.Settle(t)
	def := class("std", "csi.example.com", storagev1.VolumeBindingImmediate)
	def.Annotations = map[string]string{defaultClassAnnotation: "true"}
	if _, err := c.StorageV1().StorageClasses().Create(t.Context(), def, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		claim, err := c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || claim.Spec.StorageClassName == nil || claim.Annotations[volume.AnnStorageProvisioner] == "" {
			return "the claim has no class or provisioner"
		}
		return ""
	})
}
