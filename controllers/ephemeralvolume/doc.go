// Package ephemeralvolume makes the claims of pods' ephemeral volumes.
//
// Reads pods and PersistentVolumeClaims, creates a claim for each volume of a
// pod that has a claim template. The claim is the pod's: the garbage collector
// deletes it with the pod.
//
// Invariant: a claim of the name that is not the pod's is never used or changed;
// the pod is told, and waits.
package ephemeralvolume
