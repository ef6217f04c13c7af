// Package tainteviction deletes pods from nodes with NoExecute taints that they
// do not tolerate, at once or when the time that they tolerate them is over.
//
// Reads pods and nodes; deletes pods, after noting why in their condition
// DisruptionTarget. Its key is the pod's.
//
// The time a pod has is counted from when the taint was put on, which the taint
// itself says, so that a change of the leader neither lengthens nor shortens it.
package tainteviction
