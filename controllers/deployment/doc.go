// Package deployment rolls a Deployment's pods from one template to the next by
// growing and shrinking its ReplicaSets.
//
// Reads Deployments, ReplicaSets and (for the strategy Recreate) pods; creates,
// resizes and deletes ReplicaSets, adopts and releases them, and writes
// Deployment status and its revision annotation.
//
// Invariants of a rolling update, as far as sizes go: the sizes of all
// ReplicaSets together never pass replicas+maxSurge, no step takes away an
// available pod when no more than replicas-maxUnavailable are, and every step
// is a function of what is there, so that any may be lost or repeated.
//
// The ReplicaSet's name is made from the hash of the template, so creating it
// twice gives the same one; a hash that another template has taken is met by
// counting collisionCount up.
package deployment
