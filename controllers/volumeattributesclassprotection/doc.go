// Package volumeattributesclassprotection keeps VolumeAttributesClasses that
// claims or volumes name from being deleted.
//
// Reads VolumeAttributesClasses, PersistentVolumes and PersistentVolumeClaims,
// writes the finalizer kubernetes.io/vac-protection.
//
// Invariant: the finalizer goes only from a class that is being deleted and that
// no volume has and no claim has, wants or moves to.
package volumeattributesclassprotection
