// Package cluster is the scheduler's view of the nodes and the pods on them. It
// is kept by watch events and by assumptions: a pod counts on its node from the
// moment it is placed, before the API server has said so.
//
// Nothing in it is worked out twice:
//
//   - a Node keeps the sums of what stands on it, and a journal says which nodes
//     changed since a reader last looked (Changed);
//   - pods that no selector in use can tell apart are of one Kind, which knows how
//     many of them stand on each node;
//   - a Counter adds up kinds over the domains of a topology key, and is kept by
//     each placement. It is what spreading and pod affinity ask.
//
// What every reader must start anew from (nodes that come, go, or are labelled or
// tainted) moves the Epoch.
package cluster
