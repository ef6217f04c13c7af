// Package disruption works out how many pods of a PodDisruptionBudget may be
// evicted.
//
// Reads PodDisruptionBudgets, pods and what controls them (workloads, or the
// scale subresource of any other kind); writes PodDisruptionBudget status, and
// takes back the condition DisruptionTarget of pods that were not deleted after
// all.
//
// Invariants: when it cannot be told how many pods there should be, no
// disruption is allowed, and the condition says why. An eviction that the API
// server has granted (status.disruptedPods) counts as a lost pod until the pod
// is gone, for two minutes at most. Pods without a controller count as they are,
// so that they block nothing for ever.
package disruption
