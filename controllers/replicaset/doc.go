// Package replicaset keeps as many pods of a ReplicaSet as it asks for.
//
// Reads ReplicaSets and pods; creates and deletes pods, adopts and releases
// them, and writes ReplicaSet status. The work is done by
// controllers/runtime/replicas, which has the invariants.
package replicaset
