// Package persistentvolumeprotection keeps volumes that are bound to a claim from
// being deleted.
//
// Reads PersistentVolumes, writes the finalizer kubernetes.io/pv-protection.
//
// Invariant: the finalizer goes only from a volume that is being deleted and is
// not Bound.
package persistentvolumeprotection
