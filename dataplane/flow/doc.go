// Package flow is the packet-flow suite: it programs services through dataplane.Dataplane with a real backend
// and asserts where packets go, over network namespaces that stand for pods, nodes and clients. It asserts nothing
// about rules, so that it is the same for every backend.
//
// It runs mode iptables on this machine's kernel, and every mode inside test/guest's kernel ("make guest"), which has
// IPVS for sure. TRIPOD_FLOW_MODES (names separated by commas) overrides; a mode that the kernel cannot have fails.
package flow
