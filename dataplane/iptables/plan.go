package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/xtables"
)

const (
	nat    = "nat"
	filter = "filter"
)

func jump(chain string) xtables.Action { return xtables.Action{Verb: xtables.Jump, Chain: chain} }

// names are the chains of one service.
type names struct{ svc, svl, ext, fw string }

func chainName(prefix, of string) string {
	sum := sha256.Sum256([]byte(of))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

func namesOf(s *dataplane.Service) names {
	of := s.PortName() + s.Protocol.String()
	return names{
		svc: chainName("KUBE-SVC-", of), svl: chainName("KUBE-SVL-", of),
		ext: chainName("KUBE-EXT-", of), fw: chainName("KUBE-FW-", of),
	}
}

func sepName(s *dataplane.Service, e dataplane.Endpoint) string {
	return chainName("KUBE-SEP-", s.PortName()+s.Protocol.String()+e.Addr.String())
}

// policy is what of the configuration a plan depends on.
type policy struct {
	clusterCIDR   netip.Prefix // of the service's family; invalid: unknown
	masqueradeAll bool
}

// planner builds one service's plan.
type planner struct {
	s   *dataplane.Service
	pol policy
	n   names
	sel dataplane.Selection
	out xtables.Plan
}

// plan is pure: the same service and policy give the same plan.
func plan(s *dataplane.Service, pol policy) (*xtables.Plan, error) {
	if err := check(s); err != nil {
		return nil, err
	}
	p := &planner{s: s, pol: pol, n: namesOf(s), sel: s.Select()}
	usesSVC := !s.InternalLocal || s.External()
	usesSVL := s.InternalLocal || (s.External() && s.ExternalLocal)
	if usesSVC && len(p.sel.Cluster) > 0 {
		p.balance(p.n.svc, p.sel.Cluster, !s.InternalLocal)
	}
	if usesSVL && len(p.sel.Local) > 0 {
		p.balance(p.n.svl, p.sel.Local, s.InternalLocal)
	}
	p.endpoints()
	p.internal()
	if s.External() {
		p.external()
	}
	if s.HealthCheckNodePort != 0 {
		p.entry(filter, "KUBE-NODEPORTS", xtables.Rule{
			Proto: uint8(dataplane.TCP), DPort: s.HealthCheckNodePort,
			Comment: s.PortName() + " health check node port", Do: xtables.Action{Verb: xtables.Accept}})
	}
	return &p.out, nil
}

func check(s *dataplane.Service) error {
	if !s.ClusterIP.IsValid() || dataplane.FamilyOf(s.ClusterIP) != s.Family {
		return fmt.Errorf("cluster address %s is not an %s address", s.ClusterIP, s.Family)
	}
	if s.ServicePort == 0 {
		return fmt.Errorf("service port 0")
	}
	for _, e := range s.Endpoints {
		if !e.Addr.IsValid() || e.Addr.Port() == 0 || dataplane.FamilyOf(e.Addr.Addr()) != s.Family {
			return fmt.Errorf("endpoint %s is not an %s address with a port", e.Addr, s.Family)
		}
	}
	return nil
}

func (p *planner) entry(table, chain string, r xtables.Rule) {
	p.out.Shared = append(p.out.Shared, xtables.Entry{Table: table, Chain: chain, Rule: r})
}

func (p *planner) chain(name string, rules ...xtables.Rule) {
	p.out.Chains = append(p.out.Chains, xtables.Chain{Table: nat, Name: name, Rules: rules})
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// to matches the Service's port at one address.
func (p *planner) to(a netip.Addr, comment string, do xtables.Action) xtables.Rule {
	return xtables.Rule{Dst: host(a), Proto: uint8(p.s.Protocol), DPort: p.s.ServicePort,
		Comment: p.s.PortName() + " " + comment, Do: do}
}

// balance makes the chain that spreads connections over endpoints: an endpoint that saw the client lately first,
// then each with the probability that makes all equal. clusterIP: the chain takes connections to the cluster address.
func (p *planner) balance(name string, eps []dataplane.Endpoint, clusterIP bool) {
	var rules []xtables.Rule
	if clusterIP {
		mark := p.to(p.s.ClusterIP, "cluster IP", jump("KUBE-MARK-MASQ"))
		switch {
		case p.pol.masqueradeAll:
			rules = append(rules, mark)
		case p.pol.clusterCIDR.IsValid(): // who is no pod may not have a way back but through us
			mark.Src, mark.NotSrc = p.pol.clusterCIDR, true
			rules = append(rules, mark)
		}
	}
	if p.s.AffinityTimeout > 0 {
		for _, e := range eps {
			sep := sepName(p.s, e)
			rules = append(rules, xtables.Rule{
				Recent:  &xtables.Recent{Name: sep, Seconds: uint32(p.s.AffinityTimeout.Seconds())},
				Comment: p.s.PortName() + " -> " + e.Addr.String(), Do: jump(sep)})
		}
	}
	for i, e := range eps {
		r := xtables.Rule{Comment: p.s.PortName() + " -> " + e.Addr.String(), Do: jump(sepName(p.s, e))}
		if left := len(eps) - i; left > 1 {
			r.Chance = 1 / float64(left)
		}
		rules = append(rules, r)
	}
	p.chain(name, rules...)
}

// endpoints makes a chain for each endpoint that some chain leads to.
func (p *planner) endpoints() {
	used := map[string]bool{}
	for _, c := range p.out.Chains {
		for _, r := range c.Rules {
			used[r.Do.Chain] = true
		}
	}
	for _, e := range p.s.Endpoints {
		sep := sepName(p.s, e)
		if !used[sep] {
			continue
		}
		used[sep] = false // once
		dnat := xtables.Rule{Proto: uint8(p.s.Protocol), Comment: p.s.PortName(),
			Do: xtables.Action{Verb: xtables.DNAT, To: e.Addr}}
		if p.s.AffinityTimeout > 0 {
			dnat.Recent = &xtables.Recent{Name: sep, Set: true}
		}
		p.chain(sep,
			// Hairpin: a pod that reaches itself must not see its own address as the other end.
			xtables.Rule{Src: host(e.Addr.Addr()), Comment: p.s.PortName(), Do: jump("KUBE-MARK-MASQ")},
			dnat)
	}
}

// refusal is what becomes of connections that no endpoint takes: refused at once, or dropped where only this node
// lacks one (a load balancer then tries another node).
func (p *planner) refusal(chosen []dataplane.Endpoint) (comment string, verb xtables.Verb) {
	switch {
	case len(p.sel.Cluster) == 0:
		return "has no endpoints", xtables.Reject
	case len(chosen) == 0:
		return "has no local endpoints", xtables.Drop
	}
	return "", 0
}

func (p *planner) internal() {
	if comment, verb := p.refusal(p.sel.Internal); verb != 0 {
		p.entry(filter, "KUBE-SERVICES", p.to(p.s.ClusterIP, comment, xtables.Action{Verb: verb}))
		return
	}
	chain := p.n.svc
	if p.s.InternalLocal {
		chain = p.n.svl
	}
	p.entry(nat, "KUBE-SERVICES", p.to(p.s.ClusterIP, "cluster IP", jump(chain)))
}

// external makes the way in from outside: node port, external and load balancer addresses.
func (p *planner) external() {
	if len(p.sel.Cluster) > 0 {
		p.externalChain()
	}
	comment, verb := p.refusal(p.sel.External)
	if verb != 0 {
		do := xtables.Action{Verb: verb}
		for _, a := range p.s.VirtualAddrs()[1:] {
			p.entry(filter, "KUBE-EXTERNAL-SERVICES", p.to(a.Addr(), comment, do))
		}
		if p.s.NodePort != 0 {
			p.entry(filter, "KUBE-EXTERNAL-SERVICES", xtables.Rule{DstLocal: true, Proto: uint8(p.s.Protocol),
				DPort: p.s.NodePort, Comment: p.s.PortName() + " " + comment, Do: do})
		}
	}
	if len(p.sel.Cluster) == 0 {
		return
	}
	for _, a := range p.s.ExternalIPs {
		p.entry(nat, "KUBE-SERVICES", p.to(a, "external IP", jump(p.n.ext)))
	}
	for _, a := range p.s.LoadBalancerIPs {
		chain := p.n.ext
		if len(p.s.SourceRanges) > 0 {
			chain = p.n.fw
			p.entry(filter, "KUBE-PROXY-FIREWALL", p.to(a, "traffic not accepted by "+p.n.fw, xtables.Action{Verb: xtables.Drop}))
		}
		p.entry(nat, "KUBE-SERVICES", p.to(a, "loadbalancer IP", jump(chain)))
	}
	if len(p.s.SourceRanges) > 0 && len(p.s.LoadBalancerIPs) > 0 {
		p.firewall()
	}
	if p.s.NodePort != 0 {
		p.entry(nat, "KUBE-NODEPORTS", xtables.Rule{Proto: uint8(p.s.Protocol), DPort: p.s.NodePort,
			Comment: p.s.PortName(), Do: jump(p.n.ext)})
	}
}

func (p *planner) externalChain() {
	name := p.s.PortName()
	if !p.s.ExternalLocal {
		p.chain(p.n.ext,
			xtables.Rule{Comment: "masquerade traffic for " + name + " external destinations", Do: jump("KUBE-MARK-MASQ")},
			xtables.Rule{Do: jump(p.n.svc)})
		return
	}
	// Policy Local keeps the client's address and so stays on this node; pods and the node itself are not bound by it.
	var rules []xtables.Rule
	if p.pol.clusterCIDR.IsValid() {
		rules = append(rules, xtables.Rule{Src: p.pol.clusterCIDR, Comment: "pod traffic for " + name + " external destinations", Do: jump(p.n.svc)})
	}
	rules = append(rules,
		xtables.Rule{SrcLocal: true, Comment: "masquerade LOCAL traffic for " + name + " external destinations", Do: jump("KUBE-MARK-MASQ")},
		xtables.Rule{SrcLocal: true, Comment: "route LOCAL traffic for " + name + " external destinations", Do: jump(p.n.svc)})
	if len(p.sel.Local) > 0 {
		rules = append(rules, xtables.Rule{Do: jump(p.n.svl)})
	}
	p.chain(p.n.ext, rules...)
}

// firewall lets the source ranges through to the load balancer addresses; what it does not match stays
// untranslated and is dropped by KUBE-PROXY-FIREWALL.
func (p *planner) firewall() {
	comment := p.s.PortName() + " loadbalancer IP"
	var rules []xtables.Rule
	for _, r := range p.s.SourceRanges {
		if dataplane.FamilyOf(r.Addr()) == p.s.Family {
			rules = append(rules, xtables.Rule{Src: r, Comment: comment, Do: jump(p.n.ext)})
		}
	}
	for _, a := range p.s.LoadBalancerIPs { // the node itself speaks from the address it speaks to
		rules = append(rules, xtables.Rule{Src: host(a), Comment: comment, Do: jump(p.n.ext)})
	}
	p.chain(p.n.fw, rules...)
}
