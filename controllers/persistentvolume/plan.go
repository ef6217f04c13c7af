package persistentvolume

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// Provisioners of this prefix were part of Kubernetes; none is left that could
// make a volume.
const inTree = "kubernetes.io/"

// defaultClassAnnotation marks the class of claims that name none.
const defaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"

// notice is an event to be.
type notice struct {
	warning         bool
	reason, message string
}

// surroundings are what a decision about a claim rests on.
type surroundings struct {
	class        *storagev1.StorageClass // the one that the claim names; nil: there is none
	defaultClass *storagev1.StorageClass
	// named is the volume of claim.Spec.VolumeName; nil: there is none.
	named *corev1.PersistentVolume
	// match is the best volume for a claim that names none.
	match *corev1.PersistentVolume
	// unscheduled are pods that use the claim and have no node.
	unscheduled []string
}

// claimStep is what to do about a claim. At most one of bind, assign and
// provision is set; else phase says what the claim is.
type claimStep struct {
	bind      *corev1.PersistentVolume
	assign    string // a class for a claim that names none
	provision *storagev1.StorageClass
	phase     corev1.PersistentVolumeClaimPhase
	notice    *notice
	// waits says for whom the claim waits; empty when it is bound.
	waits string
}

func delayed(c *storagev1.StorageClass) bool {
	return c != nil && ptr.Deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}

// decideClaim returns what to do about a claim.
func decideClaim(claim *corev1.PersistentVolumeClaim, s surroundings) claimStep {
	if _, ok := claim.Annotations[volume.AnnBindCompleted]; ok {
		return decideBound(claim, s.named)
	}
	if claim.Spec.VolumeName != "" {
		return decideNamed(claim, s.named)
	}
	if s.match != nil {
		return claimStep{bind: s.match}
	}
	if claim.Spec.StorageClassName == nil && !volume.PersistentVolumeClaimHasClass(claim) && s.defaultClass != nil {
		return claimStep{assign: s.defaultClass.Name}
	}
	step := claimStep{phase: corev1.ClaimPending}
	className := volume.GetPersistentVolumeClaimClass(claim)
	switch {
	case className == "":
		step.notice = &notice{false, "FailedBinding", "no persistent volumes available for this claim and no storage class is set"}
		step.waits = "a volume that fits (size, access modes, selector), made by hand: the claim has no storage class"
	case s.class == nil:
		step.notice = &notice{true, "ProvisioningFailed", fmt.Sprintf("storageclass.storage.k8s.io %q not found", className)}
		step.waits = fmt.Sprintf("storage class %q, which does not exist", className)
	case delayed(s.class) && !volume.IsDelayBindingProvisioning(claim):
		n := notice{false, "WaitForFirstConsumer", "waiting for first consumer to be created before binding"}
		switch len(s.unscheduled) {
		case 0:
			step.waits = "a pod that uses it: its storage class binds when the first one is scheduled (WaitForFirstConsumer)"
		case 1:
			n.reason, n.message = "WaitForPodScheduled", fmt.Sprintf("waiting for pod %s to be scheduled", s.unscheduled[0])
		default:
			n.reason, n.message = "WaitForPodScheduled", fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(s.unscheduled, ","))
		}
		if step.waits == "" {
			step.waits = fmt.Sprintf("the scheduler to choose a node for pod %s", strings.Join(s.unscheduled, ", "))
		}
		step.notice = &n
	case s.class.Provisioner == "kubernetes.io/no-provisioner":
		step.notice = &notice{true, "ProvisioningFailed", fmt.Sprintf("storageclass %q has no provisioner", className)}
		step.waits = fmt.Sprintf("a volume of class %q made by hand: the class has no provisioner", className)
	case strings.HasPrefix(s.class.Provisioner, inTree) && csiName(s.class.Provisioner) == "":
		step.notice = &notice{true, "ProvisioningFailed", fmt.Sprintf("no volume plugin matched name: %s", s.class.Provisioner)}
		step.waits = fmt.Sprintf("a volume of class %q made by hand: its provisioner %s is not part of this cluster", className, s.class.Provisioner)
	default:
		name := provisionerName(s.class)
		step.provision = s.class
		step.notice = &notice{false, "ExternalProvisioning", fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
			"or manually by the system administrator. If volume creation is delayed, please verify that "+
			"the provisioner is running and correctly registered.", name)}
		step.waits = fmt.Sprintf("the provisioner %s to make a volume", name)
	}
	return step
}

// decideNamed is for a claim that names its volume and is not bound to it yet.
func decideNamed(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) claimStep {
	pending := claimStep{phase: corev1.ClaimPending}
	switch {
	case v == nil:
		pending.waits = fmt.Sprintf("volume %s, which does not exist", claim.Spec.VolumeName)
	case v.Spec.ClaimRef == nil:
		if why := mismatch(v, claim); why != "" {
			pending.notice = &notice{true, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", v.Name, why)}
			pending.waits = fmt.Sprintf("volume %s to fit: %s", v.Name, why)
			return pending
		}
		return claimStep{bind: v}
	case volume.IsVolumeBoundToClaim(v, claim):
		return claimStep{bind: v}
	default:
		pending.notice = &notice{true, "FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", v.Name)}
		pending.waits = fmt.Sprintf("volume %s, which claim %s/%s has", v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	return pending
}

// decideBound is for a claim whose binding was completed once.
func decideBound(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) claimStep {
	lost := claimStep{phase: corev1.ClaimLost}
	switch {
	case claim.Spec.VolumeName == "":
		lost.notice = &notice{true, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"}
		lost.waits = "nobody: it was bound and names its volume no longer; delete it and make it anew"
	case v == nil:
		lost.notice = &notice{true, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"}
		lost.waits = fmt.Sprintf("volume %s, which it was bound to and which is gone", claim.Spec.VolumeName)
	case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == claim.UID:
		return claimStep{bind: v}
	default:
		lost.notice = &notice{true, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"}
		lost.waits = fmt.Sprintf("volume %s, which is bound to another claim, %s/%s", v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
	}
	return lost
}

// mismatch says why the volume cannot serve the claim that names it, or "".
func mismatch(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	have := v.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case v.DeletionTimestamp != nil:
		return fmt.Sprintf("the volume is marked for deletion %q", v.Name)
	case have.Value() < want.Value():
		return "requested PV is too small"
	case volume.GetPersistentVolumeClass(v) != volume.GetPersistentVolumeClaimClass(claim):
		return "storageClassName does not match"
	case ptr.Deref(v.Spec.VolumeAttributesClassName, "") != ptr.Deref(claim.Spec.VolumeAttributesClassName, ""):
		return "volumeAttributesClassName does not match"
	case volume.CheckVolumeModeMismatches(&claim.Spec, &v.Spec):
		return "incompatible volumeMode"
	case !volume.CheckAccessModes(claim, v):
		return "incompatible accessMode"
	}
	return ""
}

// volumeStep is what to do about a volume: its phase, unless unbind.
type volumeStep struct {
	phase  corev1.PersistentVolumePhase // "": as it is
	notice *notice
	unbind bool
	// claim is to be looked at: it is to be bound to this volume.
	claim bool
}

// decideVolume returns what to do about a volume. claim is the one of its
// claimRef with that very UID, nil when it is gone for sure.
func decideVolume(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) volumeStep {
	ref := v.Spec.ClaimRef
	switch {
	case ref == nil || ref.UID == "":
		return volumeStep{phase: corev1.VolumeAvailable, claim: ref != nil}
	case claim == nil:
		return reclaim(v)
	case claim.Spec.VolumeName == "":
		if volume.CheckVolumeModeMismatches(&claim.Spec, &v.Spec) {
			return volumeStep{notice: &notice{true, "VolumeMismatch",
				fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", claim.Name)}}
		}
		return volumeStep{claim: true}
	case claim.Spec.VolumeName == v.Name:
		return volumeStep{phase: corev1.VolumeBound}
	}
	// The claim took another volume.
	if _, ok := v.Annotations[volume.AnnDynamicallyProvisioned]; ok && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return reclaim(v)
	}
	return volumeStep{unbind: true}
}

// reclaim is for a volume whose claim is gone.
func reclaim(v *corev1.PersistentVolume) volumeStep {
	if v.Status.Phase == corev1.VolumeFailed {
		return volumeStep{}
	}
	failed := func(reason, message string) volumeStep {
		if v.Status.Phase != corev1.VolumeReleased {
			return volumeStep{phase: corev1.VolumeReleased} // first; the change brings it back here
		}
		return volumeStep{phase: corev1.VolumeFailed, notice: &notice{true, reason, message}}
	}
	if v.Annotations[volume.AnnMigratedTo] != "" {
		return volumeStep{phase: corev1.VolumeReleased}
	}
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
	case corev1.PersistentVolumeReclaimRecycle:
		return failed("VolumeFailedRecycle", "No recycler plugin found for the volume!")
	case corev1.PersistentVolumeReclaimDelete:
		by := v.Annotations[volume.AnnDynamicallyProvisioned]
		switch {
		case by != "" && !strings.HasPrefix(by, inTree), by == "" && v.Spec.CSI != nil:
			// Its provisioner sees that it is released.
		case by != "":
			return failed("VolumeFailedDelete", fmt.Sprintf("no volume plugin matched name: %s", by))
		default:
			return failed("VolumeFailedDelete", fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched", v.Name))
		}
	default:
		return failed("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
	}
	return volumeStep{phase: corev1.VolumeReleased}
}
