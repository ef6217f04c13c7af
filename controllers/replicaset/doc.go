// Package replicaset keeps as many pods of a ReplicaSet as it asks for.
//
// Reads ReplicaSets and pods; creates and deletes pods, adopts and releases
// them, and writes ReplicaSet status.
//
// Invariants: a ReplicaSet whose pods in the cache may be incomplete (creations
// or deletions in flight) neither creates nor deletes; pods of others are never
// touched; a ReplicaSet that is being deleted only reports.
package replicaset
