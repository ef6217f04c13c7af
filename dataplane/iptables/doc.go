// Package iptables is the dataplane backend that writes iptables rules, in nf_tables and through netlink (package
// dataplane/xtables), under the names that kube-proxy made familiar:
//
//	nat:    PREROUTING, OUTPUT -> KUBE-SERVICES -> KUBE-SVC-… (all endpoints) or KUBE-SVL-… (this node's)
//	        -> KUBE-SEP-… (one endpoint: hairpin mark, DNAT); node ports, external and load balancer addresses by way of
//	        KUBE-NODEPORTS, KUBE-FW-… (source ranges) and KUBE-EXT-…; POSTROUTING -> KUBE-POSTROUTING (masquerade)
//	filter: KUBE-SERVICES and KUBE-EXTERNAL-SERVICES (no endpoints: reject or drop), KUBE-PROXY-FIREWALL,
//	        KUBE-NODEPORTS (health check ports), KUBE-FORWARD
//
// The chain names end in the first 16 characters of the base32 SHA-256 of the port's name, protocol and, for SEP, the
// endpoint, as kube-proxy's do (kubernetes.io, "Debug Services").
//
// plan.go turns one service into its chains and rules and is pure. One service's change writes that service's chains
// and nothing else.
package iptables
