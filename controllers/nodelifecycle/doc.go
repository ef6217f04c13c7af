// Package nodelifecycle notices when a node falls silent and lets the cluster
// know.
//
// Reads nodes, their Leases in kube-node-lease, and pods. Writes node conditions
// (to Unknown, when a node has been silent for the grace period), node taints
// that follow from conditions, and the Ready condition of pods on nodes that are
// not ready, so that Services drop them at once. It deletes no pod: that is
// tainteviction's, by the NoExecute taints.
//
// A node's silence is measured on this process's clock, from the last event of
// its Lease or of a heartbeat in its conditions; clocks of nodes do not matter.
// Before a node is declared silent its Lease is read from the API server, so that
// a cache that is behind harms nobody. After a change of the leader every node
// gets the full grace period anew.
//
// NoExecute taints are put on slowly when much is broken: one node per 10 s in
// each zone, less or not at all when most of a zone is down, and none (those
// there are taken off) when no zone has a node left, for then it is rather this
// side that is cut off.
package nodelifecycle
