// Package scheduling places pods on nodes: it takes pending pods by priority,
// filters the nodes that could run each, scores those, assumes the pod on the
// best one in its own view of the cluster, and binds it through the API while it
// goes on with the next.
//
//	queue    pending pods: ready, backing off, waiting for a change that can help
//	cluster  nodes and what stands on them, kept by watch and by assumption
//	engine   the decision, shared by pods that are alike; the victims of preemption
//	profile  which plugins decide, from a KubeSchedulerConfiguration
//	plugin   what a filter and a score are; plugins/<name> holds one each
//
// A pod that fits nowhere gets an event and a condition that name every reason
// with its count of nodes, and costs nothing until something happens that one of
// the plugins that refused it says may help.
//
// The scheduler runs at the raft leader and stops with the leadership. Two
// leaders at once are harmless: a binding of a bound pod is refused by the API
// server.
package scheduling
