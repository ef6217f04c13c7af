// Package replicas keeps as many pods as their owner asks for: the engine of the
// controllers of ReplicaSet and ReplicationController, which differ in their API
// alone. It sees every owner as a ReplicaSet.
//
// Invariants: an owner whose pods in the cache may be incomplete (creations or
// deletions in flight) neither creates nor deletes; pods of others are never
// touched; an owner that is being deleted only reports.
package replicas
