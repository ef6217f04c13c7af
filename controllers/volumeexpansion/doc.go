// Package volumeexpansion hands claims that ask for more than their volume has to
// the resizer of the volume's driver.
//
// Reads PersistentVolumeClaims and PersistentVolumes, writes the annotation that
// names the resizer, for volumes whose kind moved to a CSI driver, and tells the
// claim for whom it waits.
//
// Invariant: volumes are resized by their drivers only; a claim's capacity is
// written by the resizer and the kubelet, never here.
package volumeexpansion
