package ipvs

import (
	"net/netip"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/xtables"
)

// base is the fixed number of rules over the sets. numbers are the sets' indexes in the kernel.
func base(f dataplane.Family, clusterCIDR netip.Prefix, masqueradeAll bool, mark uint32, numbers map[setName]uint16) xtables.Base {
	match := func(n setName, not bool, dirs ...string) xtables.SetMatch {
		return xtables.SetMatch{Name: n.of(f), Index: numbers[n], Dirs: dirs, Not: not}
	}
	to := func(n setName) []xtables.SetMatch { return []xtables.SetMatch{match(n, false, "dst", "dst")} }
	do := func(v xtables.Verb) xtables.Action { return xtables.Action{Verb: v} }
	ask := xtables.Action{Verb: xtables.OrMark, Mark: mark}
	marked := func(not bool) *xtables.MarkMatch { return &xtables.MarkMatch{Value: mark, Mask: mark, Not: not} }
	jump := func(table, chain, comment, target string) xtables.Entry {
		return xtables.Entry{Table: table, Chain: chain, Rule: xtables.Rule{Comment: comment,
			Do: xtables.Action{Verb: xtables.Jump, Chain: target}}}
	}

	services := []xtables.Rule{{Sets: to(setExternal), Comment: "kubernetes service external destinations", Do: ask}}
	cluster := xtables.Rule{Sets: to(setCluster), Comment: "kubernetes service cluster IP", Do: ask}
	// The node itself speaks from the cluster address, which is its own: no endpoint could answer that.
	self := cluster
	self.SrcLocal = true
	services = append(services, self)
	switch {
	case masqueradeAll:
		services = append(services, cluster)
	case clusterCIDR.IsValid():
		cluster.Src, cluster.NotSrc = clusterCIDR, true
		services = append(services, cluster)
	}
	return xtables.Base{
		Chains: []xtables.Chain{
			{Table: "nat", Name: "KUBE-IPVS-SERVICES", Rules: services},
			{Table: "nat", Name: "KUBE-IPVS-POSTROUTING", Rules: []xtables.Rule{
				{Sets: []xtables.SetMatch{match(setLoop, false, "dst", "dst", "src")},
					Comment: "kubernetes endpoint that reaches itself", Do: do(xtables.Masquerade)},
				{Mark: marked(true), Do: do(xtables.Return)},
				{Do: xtables.Action{Verb: xtables.XorMark, Mark: mark}},
				{Comment: "kubernetes service traffic requiring SNAT", Do: do(xtables.Masquerade)}}},
			{Table: "filter", Name: "KUBE-IPVS-FILTER", Rules: []xtables.Rule{
				{CTState: xtables.New, Sets: []xtables.SetMatch{match(setGuarded, false, "dst", "dst"), match(setSources, true, "dst", "dst", "src")},
					Comment: "kubernetes load balancer source ranges", Do: do(xtables.Drop)},
				{CTState: xtables.New, Sets: to(setDrop), Comment: "no local endpoints", Do: do(xtables.Drop)},
				{CTState: xtables.New, Sets: to(setRefuse), Comment: "no endpoints", Do: do(xtables.Reject)},
				// The node's own daemons must not answer on service addresses.
				{CTState: xtables.New, Sets: []xtables.SetMatch{match(setAddrs, false, "dst"), match(setActive, true, "dst", "dst")},
					Comment: "no service port, or no endpoints", Do: do(xtables.Reject)}}},
			{Table: "filter", Name: "KUBE-IPVS-FORWARD", Rules: []xtables.Rule{
				{Mark: marked(false), Comment: "kubernetes forwarding rules", Do: do(xtables.Accept)},
				{CTState: xtables.Related | xtables.Established, Comment: "kubernetes forwarding conntrack rule", Do: do(xtables.Accept)}}},
		},
		Jumps: []xtables.Entry{
			jump("nat", "PREROUTING", "kubernetes service portals", "KUBE-IPVS-SERVICES"),
			jump("nat", "OUTPUT", "kubernetes service portals", "KUBE-IPVS-SERVICES"),
			jump("nat", "POSTROUTING", "kubernetes postrouting rules", "KUBE-IPVS-POSTROUTING"),
			jump("filter", "INPUT", "kubernetes ipvs access filter", "KUBE-IPVS-FILTER"),
			jump("filter", "FORWARD", "kubernetes forwarding rules", "KUBE-IPVS-FORWARD"),
		},
	}
}
