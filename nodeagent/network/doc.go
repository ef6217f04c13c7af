// Package network is the built-in pod network of a node.
//
// It owns, and marks as its own:
//   - the CNI configuration 10-tripod.conflist: a bridge (cni0), addresses from
//     the node's pod CIDR by host-local, host ports by portmap;
//   - a route to every other node's pod CIDR: through the node's address where
//     both are on one segment, else through the VXLAN device tripod.vxlan with
//     static neighbours (nothing is learnt, nothing is flooded). Routes carry
//     protocol number RouteProtocol;
//   - the bridge tripod0 and a route of the service CIDR over it with the node's
//     address as source: a ClusterIP is translated in the OUTPUT hook, which
//     comes after routing, so without a route a host with no default route could
//     not reach any Service;
//   - the nf_tables table tripod_net, which gives pod traffic that leaves the
//     cluster the node's address, and the iptables chain TRIPOD-FORWARD, which
//     accepts pod traffic where the policy of FORWARD is DROP;
//   - ip_forward and bridge-nf-call-iptables.
//
// It never touches what others own: a route, a chain or a CNI configuration that
// it did not make stays, and an operator's CNI configuration turns everything off
// but the service route and forwarding.
//
// State is observed → planned (plan.go, pure) → applied, on every change of a
// Node, on every change that netlink tells of, and each minute.
package network
