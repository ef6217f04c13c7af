// Package cluster is the scheduler's view of the nodes and the pods on them. It
// is kept by watch events and by assumptions: a pod counts on its node from the
// moment it is placed, before the API server has said so.
package cluster
