// Package nodettl tells each kubelet how long it may keep Secrets and ConfigMaps
// before it asks for them again: the longer, the more nodes there are.
//
// Reads nodes, writes the annotation node.alpha.kubernetes.io/ttl, in seconds.
//
// Invariant: around a threshold the value stays as it is until the number of
// nodes has clearly left it, so that one node that comes and goes does not make
// every node be written.
package nodettl
