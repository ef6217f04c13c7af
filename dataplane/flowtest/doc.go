// Package flowtest is the packet-flow suite: it programs services through dataplane.Dataplane with a real backend
// and asserts where packets go, over network namespaces that stand for pods, nodes and clients. It asserts nothing
// about rules, so that it is the same for every backend.
//
// TRIPOD_FLOW_MODES names the modes to run, separated by commas; default: iptables. A mode that the kernel cannot
// have fails. "make guest" runs all modes in a kernel that has IPVS.
package flowtest
