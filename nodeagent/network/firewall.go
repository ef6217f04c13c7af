package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

const (
	natTable     = "tripod_net"
	natChain     = "postrouting"
	localSet     = "local"
	forwardChain = "TRIPOD-FORWARD"
)

// firewall holds the rules of the pod network: an nf_tables table of our own for
// masquerading, and a chain in iptables' filter table, since an accept in a table
// of our own would not outdo a DROP policy there.
type firewall struct {
	mu sync.Mutex
	ip *iptables.IPTables // made on first use: it asks the binary for its version
}

// masquerade makes traffic of pods here that leaves the cluster carry the node's
// address. It writes the table only when the kernel's differs.
func (f *firewall) masquerade(pods, cluster netip.Prefix, direct []netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	keep := []netip.Prefix{cluster.Masked(), netip.MustParsePrefix("224.0.0.0/4")}
	for _, a := range direct {
		if !cluster.Contains(a) {
			keep = append(keep, netip.PrefixFrom(a, 32))
		}
	}
	want := "tripod: " + pods.Masked().String() + " but to " + join(keep)
	if have := tableComment(c); have == want {
		return nil
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: natTable}
	c.AddTable(t)
	c.DelTable(t) // add first: deleting what is not there would fail the transaction
	t = c.AddTable(t)
	ch := c.AddChain(&nftables.Chain{Name: natChain, Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	set := &nftables.Set{Table: t, Name: localSet, KeyType: nftables.TypeIPAddr, Interval: true}
	if err := c.AddSet(set, elements(keep)); err != nil {
		return fmt.Errorf("nf_tables set %s: %w", localSet, err)
	}
	mask := ipNet(pods.Masked()).Mask
	c.AddRule(&nftables.Rule{Table: t, Chain: ch, UserData: comment(want), Exprs: []expr.Any{
		// ip saddr PODS
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: binaryutil.NativeEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: pods.Masked().Addr().AsSlice()},
		// ip daddr != @local
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: localSet, SetID: set.ID, Invert: true},
		&expr.Counter{},
		&expr.Masq{FullyRandom: true},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write nf_tables table %s: %w", natTable, err)
	}
	return nil
}

// elements turns disjoint prefixes into the half-open intervals of a set.
func elements(ps []netip.Prefix) []nftables.SetElement {
	ps = slices.Clone(ps)
	slices.SortFunc(ps, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	var out []nftables.SetElement
	for _, p := range ps {
		out = append(out, nftables.SetElement{Key: p.Masked().Addr().AsSlice()})
		if end := after(p); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// after is the first address behind p; invalid where p reaches the last one.
func after(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b).Next()
}

func join(ps []netip.Prefix) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}

// comment is a rule's comment in libnftnl's user data form (type 0, length,
// text, NUL), which nft prints; its length is a byte.
func comment(s string) []byte {
	if len(s) > 200 {
		s = s[:180] + fmt.Sprintf("… %08x", sum(s))
	}
	return append(append([]byte{0, byte(len(s) + 1)}, s...), 0)
}

func sum(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// tableComment reads back what masquerade wrote; "" when the table, its chain or
// its only rule is missing.
func tableComment(c *nftables.Conn) string {
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: natTable}
	rules, err := c.GetRules(t, &nftables.Chain{Name: natChain, Table: t})
	if err != nil || len(rules) != 1 || len(rules[0].UserData) < 3 {
		return ""
	}
	d := rules[0].UserData
	return string(d[2 : len(d)-1])
}

// acceptForward accepts traffic from and to pods in iptables' FORWARD, at the
// end: what an operator or a Service's rules refuse stays refused.
func (f *firewall) acceptForward(cluster netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	rules := [][]string{
		{"-s", cluster.Masked().String(), "-m", "comment", "--comment", "tripod: from pods", "-j", "ACCEPT"},
		{"-d", cluster.Masked().String(), "-m", "comment", "--comment", "tripod: to pods", "-j", "ACCEPT"},
	}
	exists, err := f.ip.ChainExists("filter", forwardChain)
	if err == nil && !exists {
		err = f.ip.NewChain("filter", forwardChain)
	}
	if err != nil {
		return fmt.Errorf("iptables chain %s: %w", forwardChain, err)
	}
	have, err := f.ip.List("filter", forwardChain)
	if err != nil {
		return fmt.Errorf("iptables chain %s: %w", forwardChain, err)
	}
	for _, r := range rules {
		if err := f.ip.AppendUnique("filter", forwardChain, r...); err != nil {
			return fmt.Errorf("iptables chain %s: %w", forwardChain, err)
		}
	}
	if len(have) > 1+len(rules) { // rules of an older cluster CIDR
		if err := f.ip.ClearChain("filter", forwardChain); err != nil {
			return fmt.Errorf("iptables chain %s: %w", forwardChain, err)
		}
		for _, r := range rules {
			if err := f.ip.Append("filter", forwardChain, r...); err != nil {
				return fmt.Errorf("iptables chain %s: %w", forwardChain, err)
			}
		}
	}
	if err := f.ip.AppendUnique("filter", "FORWARD", jump()...); err != nil {
		return fmt.Errorf("iptables FORWARD: jump to %s: %w", forwardChain, err)
	}
	return nil
}

func jump() []string {
	return []string{"-m", "comment", "--comment", "tripod: pod network", "-j", forwardChain}
}

func (f *firewall) open() error {
	if f.ip != nil {
		return nil
	}
	ip, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(10))
	if err != nil {
		return fmt.Errorf("run iptables: %w: install it with `apt install iptables`", err)
	}
	f.ip = ip
	return nil
}

// remove takes away every rule that this package made.
func (f *firewall) remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	if c, err := nftables.New(); err != nil {
		errs = append(errs, fmt.Errorf("open nf_tables: %w", err))
	} else {
		t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: natTable}
		c.AddTable(t)
		c.DelTable(t)
		if err := c.Flush(); err != nil {
			errs = append(errs, fmt.Errorf("remove nf_tables table %s: %w", natTable, err))
		}
	}
	if err := f.open(); err != nil {
		return errors.Join(errs...) // no iptables: nothing of ours in it
	}
	if ok, err := f.ip.ChainExists("filter", forwardChain); err == nil && ok {
		errs = append(errs, f.ip.DeleteIfExists("filter", "FORWARD", jump()...), f.ip.ClearAndDeleteChain("filter", forwardChain))
	}
	return errors.Join(errs...)
}
