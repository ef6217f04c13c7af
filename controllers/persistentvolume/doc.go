// Package persistentvolume binds claims to volumes, asks external provisioners
// for volumes that are missing, and reclaims volumes whose claims are gone.
//
// Reads PersistentVolumeClaims, PersistentVolumes, StorageClasses and pods.
// Writes the binding (claimRef of a volume, volumeName of a claim and their
// annotations), the phases of both, a claim's capacity and access modes, the
// provisioner's annotation, and the default class of claims made before there
// was one.
//
// Invariants: the volume is written before the claim, so that a volume is
// promised to one claim only and a crash between the two writes is found and
// finished from the volume's side. A claim once bound is never bound elsewhere:
// when its volume is gone it is Lost. A volume of a claim that is gone is kept
// (Retain), left to its provisioner (Delete), or Failed with the reason
// (Recycle, for there are no recyclers, and Delete of a volume that no
// provisioner made).
//
// A claim is told about once, not at every look: an event is repeated only when
// it says something else than the last one for the claim.
package persistentvolume
