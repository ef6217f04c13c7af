// Package daemonset keeps one pod of a DaemonSet on every node that fits it, and
// rolls those pods from one template to the next.
//
// Reads DaemonSets, nodes, pods and ControllerRevisions; creates and deletes
// pods and ControllerRevisions, adopts and releases both, and writes DaemonSet
// status.
//
// A pod is pinned to its node by a node affinity on the node's name, and bound
// by the scheduler. It tolerates the taints that tell of a node's troubles.
//
// Invariants: a DaemonSet whose pods in the cache may be incomplete (creations
// or deletions in flight) neither creates nor deletes. A rolling update takes
// away no available pod when maxUnavailable nodes are without one, and has at
// most maxSurge nodes with two; a pod that is not available is replaced at once.
// A pod that fails is deleted with a growing pause, by node, so that one that
// always fails does not keep the API server busy.
package daemonset
