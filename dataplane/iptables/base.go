package iptables

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/xtables"
	"golang.org/x/sys/unix"
)

// base is the fixed part of the rules. mark is the bit that asks for masquerading.
func base(f dataplane.Family, cfg Config, mark uint32) xtables.Base {
	nodePorts := nodePortRules(f, cfg)
	marked := func(not bool) *xtables.MarkMatch { return &xtables.MarkMatch{Value: mark, Mask: mark, Not: not} }
	accept := xtables.Action{Verb: xtables.Accept}
	portals := func(table, chain string, state xtables.CTState, comment, to string) xtables.Entry {
		return xtables.Entry{Table: table, Chain: chain, Rule: xtables.Rule{CTState: state, Comment: comment, Do: jump(to)}}
	}
	const svcs, ext, fw, np = "kubernetes service portals", "kubernetes externally-visible service portals",
		"kubernetes load balancer firewall", "kubernetes health check service ports"
	return xtables.Base{
		Chains: []xtables.Chain{
			{Table: nat, Name: "KUBE-MARK-MASQ", Rules: []xtables.Rule{
				{Do: xtables.Action{Verb: xtables.OrMark, Mark: mark}}}},
			{Table: nat, Name: "KUBE-POSTROUTING", Rules: []xtables.Rule{
				{Mark: marked(true), Do: xtables.Action{Verb: xtables.Return}},
				// Cleared, so that a packet that comes by again (a tunnel's) is not masqueraded twice.
				{Do: xtables.Action{Verb: xtables.XorMark, Mark: mark}},
				{Comment: "kubernetes service traffic requiring SNAT", Do: xtables.Action{Verb: xtables.Masquerade}}}},
			{Table: filter, Name: "KUBE-FORWARD", Rules: []xtables.Rule{
				// Replies that conntrack does not recognise would leave untranslated and reset the client's connection.
				{CTState: xtables.Invalid, Do: xtables.Action{Verb: xtables.Drop}},
				{Mark: marked(false), Comment: "kubernetes forwarding rules", Do: accept},
				{CTState: xtables.Related | xtables.Established, Comment: "kubernetes forwarding conntrack rule", Do: accept}}},
		},
		Shared: []xtables.Chain{
			{Table: nat, Name: "KUBE-SERVICES", Rules: nodePorts},
			{Table: nat, Name: "KUBE-NODEPORTS"},
			{Table: filter, Name: "KUBE-SERVICES"},
			{Table: filter, Name: "KUBE-EXTERNAL-SERVICES"},
			{Table: filter, Name: "KUBE-PROXY-FIREWALL"},
			{Table: filter, Name: "KUBE-NODEPORTS"},
		},
		Jumps: []xtables.Entry{
			portals(nat, "PREROUTING", 0, svcs, "KUBE-SERVICES"),
			portals(nat, "OUTPUT", 0, svcs, "KUBE-SERVICES"),
			portals(nat, "POSTROUTING", 0, "kubernetes postrouting rules", "KUBE-POSTROUTING"),
			portals(filter, "INPUT", xtables.New, fw, "KUBE-PROXY-FIREWALL"),
			portals(filter, "INPUT", 0, np, "KUBE-NODEPORTS"),
			portals(filter, "INPUT", xtables.New, ext, "KUBE-EXTERNAL-SERVICES"),
			portals(filter, "FORWARD", xtables.New, fw, "KUBE-PROXY-FIREWALL"),
			portals(filter, "FORWARD", 0, "kubernetes forwarding rules", "KUBE-FORWARD"),
			portals(filter, "FORWARD", xtables.New, svcs, "KUBE-SERVICES"),
			portals(filter, "FORWARD", xtables.New, ext, "KUBE-EXTERNAL-SERVICES"),
			portals(filter, "OUTPUT", xtables.New, fw, "KUBE-PROXY-FIREWALL"),
			portals(filter, "OUTPUT", xtables.New, svcs, "KUBE-SERVICES"),
		},
		Prefixes: []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-"},
	}
}

// nodePortRules lead packets for this node to KUBE-NODEPORTS.
func nodePortRules(f dataplane.Family, cfg Config) []xtables.Rule {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	rule := xtables.Rule{DstLocal: true, Comment: comment, Do: jump("KUBE-NODEPORTS")}
	if f == dataplane.IPv6 {
		rule.NotDstNet = netip.MustParsePrefix("::1/128")
	} else if !cfg.LocalhostNodePorts {
		rule.NotDstNet = netip.MustParsePrefix("127.0.0.0/8")
	}
	if len(cfg.NodePortAddresses) == 0 {
		return []xtables.Rule{rule}
	}
	var rules []xtables.Rule
	for _, p := range cfg.NodePortAddresses {
		if dataplane.FamilyOf(p.Addr()) == f {
			r := rule
			r.NotDstNet, r.Dst = netip.Prefix{}, p.Masked()
			rules = append(rules, r)
		}
	}
	return rules
}

// prepareKernel makes the settings that the rules need. A read-only /proc/sys (a container) is the operator's choice.
func (b *Backend) prepareKernel() error {
	settings := map[string]string{
		// Without it the replies between pods of one bridge are not translated back.
		"net/bridge/bridge-nf-call-iptables": "1",
	}
	if b.cfg.LocalhostNodePorts {
		settings["net/ipv4/conf/all/route_localnet"] = "1"
	}
	var errs []error
	for name, want := range settings {
		path := "/proc/sys/" + name
		if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == want {
			continue
		}
		err := os.WriteFile(path, []byte(want), 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s is missing: load module br_netfilter", path)
		}
		if err != nil && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
			errs = append(errs, fmt.Errorf("set %s to %s: %w", name, want, err))
		}
	}
	return errors.Join(errs...)
}
