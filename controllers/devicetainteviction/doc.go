// Package devicetainteviction evicts pods whose devices have a taint of effect
// NoExecute that their claim does not tolerate.
//
// Reads ResourceSlices and DeviceTaintRules for the taints, ResourceClaims for
// who has which device, and pods. Notes the condition DisruptionTarget on pods
// and deletes them; writes the condition EvictionInProgress of rules.
//
// Invariants: a pod is evicted when the shortest toleration of its devices' taints
// is over, counted from when the taint was added. Of a pool only the slices of
// its newest generation count.
package devicetainteviction
