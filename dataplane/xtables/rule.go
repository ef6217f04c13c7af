package xtables

import (
	"fmt"
	"net/netip"
	"strings"
)

// Family is the protocol family of a table.
type Family uint8

// The families, numbered as NFPROTO_IPV4 and NFPROTO_IPV6.
const (
	IPv4 Family = 2
	IPv6 Family = 10
)

// CTState is a set of connection tracking states.
type CTState uint16

// The states of xt_conntrack's state mask.
const (
	Invalid     CTState = 1
	Established CTState = 2
	Related     CTState = 4
	New         CTState = 8
)

// MarkMatch matches packets whose mark, under Mask, equals Value (or does not, with Not).
type MarkMatch struct {
	Value, Mask uint32
	Not         bool
}

// Recent is the recent match: Set remembers the source address in the list Name; otherwise it matches sources that
// the list saw in the last Seconds, forgetting older ones.
type Recent struct {
	Name    string // at most 199 bytes
	Seconds uint32
	Set     bool
}

// SetMatch matches packets that are in an IP set. Dirs says for each dimension of the set whether it is looked up by
// the packet's source ("src") or destination ("dst").
type SetMatch struct {
	Name  string
	Index uint16 // the kernel's number of the set
	Dirs  []string
	Not   bool
}

// Verb is what a rule does with a packet it matches.
type Verb uint8

// The verbs.
const (
	Jump Verb = iota + 1 // to Action.Chain
	Accept
	Drop
	Return
	DNAT       // to Action.To
	Masquerade // with fully random ports
	OrMark     // set the bits Action.Mark
	XorMark    // flip the bits Action.Mark
	Reject     // with ICMP port unreachable
)

// Action is a rule's target.
type Action struct {
	Verb  Verb
	Chain string
	To    netip.AddrPort
	Mark  uint32
}

// Rule is one rule: everything set must match. The zero value of a field matches everything.
type Rule struct {
	Src, Dst  netip.Prefix
	NotSrc    bool  // Src must not match
	Proto     uint8 // IPPROTO_TCP, UDP or SCTP
	DPort     uint16
	SrcLocal  bool // the source is an address of this machine
	DstLocal  bool // so is the destination
	Mark      *MarkMatch
	CTState   CTState
	Sets      []SetMatch
	Recent    *Recent
	Chance    float64 // probability of matching, above 0 and below 1; 0: always
	Comment   string
	Do        Action
	NotDstNet netip.Prefix // the destination must not be in it
}

func protoName(p uint8) string {
	switch p {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return fmt.Sprint(p)
}

// String prints the rule as iptables -S would, without its chain: for tests and messages.
func (r Rule) String() string {
	var w []string
	add := func(f string, a ...any) { w = append(w, fmt.Sprintf(f, a...)) }
	not := func(b bool) string {
		if b {
			return "! "
		}
		return ""
	}
	if r.Src.IsValid() {
		add("%s-s %s", not(r.NotSrc), r.Src)
	}
	if r.Dst.IsValid() {
		add("-d %s", r.Dst)
	}
	if r.NotDstNet.IsValid() {
		add("! -d %s", r.NotDstNet)
	}
	if r.Proto != 0 {
		add("-p %s", protoName(r.Proto))
	}
	if r.DPort != 0 {
		add("--dport %d", r.DPort)
	}
	if r.SrcLocal {
		add("--src-type LOCAL")
	}
	if r.DstLocal {
		add("--dst-type LOCAL")
	}
	if m := r.Mark; m != nil {
		add("%s--mark %#x/%#x", not(m.Not), m.Value, m.Mask)
	}
	if r.CTState != 0 {
		var s []string
		for _, n := range []struct {
			b CTState
			n string
		}{{Invalid, "INVALID"}, {New, "NEW"}, {Related, "RELATED"}, {Established, "ESTABLISHED"}} {
			if r.CTState&n.b != 0 {
				s = append(s, n.n)
			}
		}
		add("--ctstate %s", strings.Join(s, ","))
	}
	for _, s := range r.Sets {
		add("%s--match-set %s %s", not(s.Not), s.Name, strings.Join(s.Dirs, ","))
	}
	if c := r.Recent; c != nil {
		if c.Set {
			add("--set --name %s", c.Name)
		} else {
			add("--rcheck --seconds %d --reap --name %s", c.Seconds, c.Name)
		}
	}
	if r.Chance != 0 {
		add("--probability %.5f", r.Chance)
	}
	if r.Comment != "" {
		add("--comment %q", r.Comment)
	}
	switch r.Do.Verb {
	case Jump:
		add("-j %s", r.Do.Chain)
	case Accept:
		add("-j ACCEPT")
	case Drop:
		add("-j DROP")
	case Return:
		add("-j RETURN")
	case DNAT:
		add("-j DNAT --to-destination %s", r.Do.To)
	case Masquerade:
		add("-j MASQUERADE --random-fully")
	case OrMark:
		add("-j MARK --or-mark %#x", r.Do.Mark)
	case XorMark:
		add("-j MARK --xor-mark %#x", r.Do.Mark)
	case Reject:
		add("-j REJECT")
	}
	return strings.Join(w, " ")
}
