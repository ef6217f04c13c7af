// Package persistentvolumeclaimprotection keeps claims that pods use from being
// deleted, and notes on bound claims whether a pod uses them.
//
// Reads PersistentVolumeClaims and pods. Writes the finalizer
// kubernetes.io/pvc-protection and the condition Unused.
//
// Invariant: the finalizer goes only from a claim that is being deleted and that
// no pod with a node names, and the API server is asked for the pods before it
// goes, for the cache may not show yet the pod that was just bound.
package persistentvolumeclaimprotection
