package network

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// vxlanOverhead is what VXLAN adds to an IPv4 packet: outer IP 20, UDP 8,
// VXLAN 8, inner Ethernet 14 bytes.
const vxlanOverhead = 50

// minMTU is the least an IPv4 host must be able to receive whole (RFC 791).
const minMTU = 576

// node is what the network must know of a Node.
type node struct {
	name    string
	ip      netip.Addr
	podCIDR netip.Prefix
}

// uplink is the interface that carries the node's address.
type uplink struct {
	name   string
	index  int
	mtu    int
	ip     netip.Addr
	onLink netip.Prefix // the segment: addresses reached without a gateway
}

// route leads to another node's pods.
type route struct {
	dst   netip.Prefix
	via   netip.Addr
	vxlan bool // via is the other node's address on the tunnel
}

// tunnelPeer is a node reached over VXLAN.
type tunnelPeer struct {
	ip     netip.Addr // its address on the tunnel: the first of its pod CIDR
	mac    net.HardwareAddr
	remote netip.Addr // its address on the underlay
}

// plan is what the kernel should hold for the pod network.
type plan struct {
	podCIDR   netip.Prefix
	podMTU    int
	tunnelMTU int
	routes    []route      // sorted by destination
	tunnel    []tunnelPeer // sorted by address; the VXLAN device exists when it is not empty
	// direct are destinations, besides the cluster CIDR, that see pods'
	// own addresses: nodes on this segment know the way back.
	direct []netip.Addr
}

// VXLANMode says when the tunnel is used.
type VXLANMode string

// The VXLAN modes.
const (
	VXLANAuto   VXLANMode = "auto"   // to nodes on other segments
	VXLANAlways VXLANMode = "always" // to every node: where the network drops pod addresses
	VXLANNever  VXLANMode = "never"  // the operator routes between segments
)

// makePlan decides from self (its pod CIDR is set), the uplink and the other
// nodes. Problems are nodes that could not be taken up, each said once.
func makePlan(self node, up uplink, others []node, mode VXLANMode, mtu int) (plan, []error) {
	p := plan{podCIDR: self.podCIDR}
	var problems []error
	// Where two nodes claim the same addresses, the first by name has them,
	// on every node alike; this node's own come before any other's.
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b node) int { return cmp.Compare(a.name, b.name) })
	taken := []node{self}
	for _, o := range others {
		if o.name == self.name || !o.podCIDR.IsValid() {
			continue
		}
		if !o.ip.IsValid() {
			problems = append(problems, fmt.Errorf("node %s has a pod CIDR but no InternalIP of this family: its pods cannot be reached", o.name))
			continue
		}
		if i := slices.IndexFunc(taken, func(t node) bool { return t.podCIDR.Overlaps(o.podCIDR) }); i >= 0 {
			problems = append(problems, fmt.Errorf("pod CIDR %s of node %s overlaps %s of node %s: its pods cannot be reached; delete and register one of the nodes again", o.podCIDR, o.name, taken[i].podCIDR, taken[i].name))
			continue
		}
		taken = append(taken, o)
		same := up.onLink.IsValid() && up.onLink.Contains(o.ip)
		switch {
		case mode == VXLANAlways || (mode == VXLANAuto && !same):
			tip := o.podCIDR.Masked().Addr()
			p.routes = append(p.routes, route{dst: o.podCIDR.Masked(), via: tip, vxlan: true})
			p.tunnel = append(p.tunnel, tunnelPeer{ip: tip, mac: tunnelMAC(o.ip), remote: o.ip})
		case same:
			p.routes = append(p.routes, route{dst: o.podCIDR.Masked(), via: o.ip})
			p.direct = append(p.direct, o.ip)
		}
	}
	slices.SortFunc(p.routes, func(a, b route) int { return a.dst.Addr().Compare(b.dst.Addr()) })
	slices.SortFunc(p.tunnel, func(a, b tunnelPeer) int { return a.ip.Compare(b.ip) })
	slices.SortFunc(p.direct, netip.Addr.Compare)

	base := up.mtu
	if base <= 0 {
		base = 1500
	}
	p.tunnelMTU = max(base-vxlanOverhead, minMTU)
	switch {
	case mtu > 0:
		p.podMTU = mtu
	case len(p.tunnel) > 0:
		p.podMTU = p.tunnelMTU
	default:
		p.podMTU = base
	}
	return p, problems
}

// tunnelMAC is a node's hardware address on the tunnel. It follows from the
// node's address, so that no node has to publish it: locally administered, then
// the letter T, then the IPv4 address.
func tunnelMAC(ip netip.Addr) net.HardwareAddr {
	b := ip.As16()
	return net.HardwareAddr{0x0e, 'T', b[12], b[13], b[14], b[15]}
}
