// Package ipvs is the dataplane backend that balances with IPVS: one virtual server for each address and port of a
// service, hash lookups instead of rules. Chosen where there are many services.
//
// In the kernel:
//   - virtual servers and their destinations, by generic netlink. A destination that is removed gets weight 0 (no new
//     connections) and goes when its connections have, or after DrainLimit; UDP's goes at once.
//   - device kube-ipvs0 (a dummy, or a bridge where there is no dummy), which holds the services' addresses so that
//     packets for them are the node's own; node ports need none, they use the node's addresses.
//   - IP sets KUBE-IPVS-… of addresses and ports, and a fixed number of iptables rules over them (package
//     dataplane/xtables): who is masqueraded, hairpins, source ranges, what is refused.
//
// What is ours: virtual servers listed in set KUBE-IPVS-SERVERS (or -SERVERS6), kept from process to process in the
// kernel; the device; sets and chains by their names. Virtual servers of others (keepalived's) are not touched.
//
// plan.go turns a service into what is wanted and is pure.
//
// Two limits: while the scheduler of a virtual server is changed, the kernel (ip_vs_edit_service) has none for it for a
// moment and refuses new connections. And with external traffic policy Local, pods and the node itself that use a node port or external address get
// this node's endpoints too, since an IPVS virtual server is the same for everyone.
package ipvs
