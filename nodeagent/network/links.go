package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// RouteProtocol marks the routes that are ours; iproute2 shows it as
	// "proto 84". No routing daemon is assigned it (iproute2, rt_protos).
	RouteProtocol = netlink.RouteProtocol(84)

	tunnelName    = "tripod.vxlan"
	tunnelVNI     = 1
	serviceBridge = "tripod0"

	unixRTMDelRoute = unix.RTM_DELROUTE
)

// findUplink finds the interface that has the node's address.
func findUplink(ip netip.Addr) (uplink, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return uplink{}, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return uplink{}, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range addrs {
			p, ok := prefixOf(a.IPNet)
			if ok && p.Addr() == ip {
				return uplink{name: l.Attrs().Name, index: l.Attrs().Index, mtu: l.Attrs().MTU, ip: ip, onLink: p.Masked()}, nil
			}
		}
	}
	return uplink{}, fmt.Errorf("no interface of this host has the node's address %s: correct nodeIP in the configuration", ip)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// applyRoutes makes the routes of the plan and removes our others, but the
// service route. A route to the same place that is not ours stays: the operator
// knows better.
func applyRoutes(p plan, up uplink) error {
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	tunnel, service := -1, -1
	if l, err := netlink.LinkByName(tunnelName); err == nil {
		tunnel = l.Attrs().Index
	}
	if l, err := netlink.LinkByName(serviceBridge); err == nil {
		service = l.Attrs().Index
	}
	want := map[netip.Prefix]*netlink.Route{}
	for _, r := range p.routes {
		nr := &netlink.Route{Dst: ipNet(r.dst), Gw: r.via.AsSlice(), Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN}
		if r.vxlan {
			nr.LinkIndex, nr.Flags = tunnel, int(netlink.FLAG_ONLINK)
			nr.Src = p.podCIDR.Masked().Addr().AsSlice()
		} else {
			nr.LinkIndex, nr.Src = up.index, up.ip.AsSlice()
		}
		want[r.dst] = nr
	}
	var errs []error
	for _, h := range have {
		dst, ok := prefixOf(h.Dst)
		if !ok || h.LinkIndex == service {
			continue
		}
		if w := want[dst]; w != nil && w.LinkIndex == h.LinkIndex && w.Gw.Equal(h.Gw) && w.Src.Equal(h.Src) {
			delete(want, dst)
			continue
		}
		if want[dst] != nil {
			continue // replaced below, without a moment without a route
		}
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", dst, err))
		}
	}
	ours := map[netip.Prefix]bool{}
	for _, h := range have {
		if dst, ok := prefixOf(h.Dst); ok {
			ours[dst] = true
		}
	}
	for dst, w := range want {
		var err error
		if ours[dst] {
			err = netlink.RouteReplace(w)
		} else if err = netlink.RouteAdd(w); errors.Is(err, syscall.EEXIST) {
			err = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("route to pods of %s through %s: %w", dst, w.Gw, err))
		}
	}
	return errors.Join(errs...)
}

// applyTunnel makes the VXLAN device with a static neighbour and forwarding
// entry for each peer, or removes it when there is none.
func applyTunnel(p plan, up uplink, port int) error {
	l, err := netlink.LinkByName(tunnelName)
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("look for %s: %w", tunnelName, err)
	}
	if len(p.tunnel) == 0 {
		if l != nil {
			if err := netlink.LinkDel(l); err != nil {
				return fmt.Errorf("remove %s: %w", tunnelName, err)
			}
		}
		return nil
	}
	if l != nil {
		v, ok := l.(*netlink.Vxlan)
		if !ok || v.VxlanId != tunnelVNI || v.Port != port || v.VtepDevIndex != up.index || !v.SrcAddr.Equal(up.ip.AsSlice()) || v.Learning ||
			!bytes.Equal(v.HardwareAddr, tunnelMAC(up.ip)) {
			if err := netlink.LinkDel(l); err != nil {
				return fmt.Errorf("replace %s: %w", tunnelName, err)
			}
			l = nil
		}
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = tunnelName, tunnelMAC(up.ip), p.tunnelMTU
		err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: tunnelVNI, VtepDevIndex: up.index, SrcAddr: up.ip.AsSlice(), Port: port, Learning: false})
		if err != nil {
			return fmt.Errorf("make the VXLAN device %s on %s (UDP port %d): %w: if another device has this port, set network.vxlanPort on every node", tunnelName, up.name, port, err)
		}
		if l, err = netlink.LinkByName(tunnelName); err != nil {
			return fmt.Errorf("look for %s: %w", tunnelName, err)
		}
	}
	if l.Attrs().MTU != p.tunnelMTU {
		if err := netlink.LinkSetMTU(l, p.tunnelMTU); err != nil {
			return fmt.Errorf("set MTU %d of %s: %w", p.tunnelMTU, tunnelName, err)
		}
	}
	if err := onlyAddress(l, netip.PrefixFrom(p.podCIDR.Masked().Addr(), 32)); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", tunnelName, err)
	}
	return applyNeighbours(l, p.tunnel)
}

// onlyAddress gives the link this IPv4 address and no other.
func onlyAddress(l netlink.Link, want netip.Prefix) error {
	addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	found := false
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && p == want {
			found = true
			continue
		}
		if err := netlink.AddrDel(l, &a); err != nil {
			return fmt.Errorf("remove address %s of %s: %w", a.IPNet, l.Attrs().Name, err)
		}
	}
	if !found {
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(want)}); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("give %s the address %s: %w", l.Attrs().Name, want, err)
		}
	}
	return nil
}

func applyNeighbours(l netlink.Link, peers []tunnelPeer) error {
	idx := l.Attrs().Index
	neighs, err := netlink.NeighList(idx, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", tunnelName, err)
	}
	fdb, err := netlink.NeighList(idx, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("list forwarding entries of %s: %w", tunnelName, err)
	}
	wantNeigh, wantFDB := map[string]netlink.Neigh{}, map[string]netlink.Neigh{}
	for _, p := range peers {
		wantNeigh[p.ip.String()+p.mac.String()] = netlink.Neigh{LinkIndex: idx, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: p.ip.AsSlice(), HardwareAddr: p.mac}
		wantFDB[p.remote.String()+p.mac.String()] = netlink.Neigh{LinkIndex: idx, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: p.remote.AsSlice(), HardwareAddr: p.mac}
	}
	var errs []error
	prune := func(have []netlink.Neigh, want map[string]netlink.Neigh, family int) {
		for _, h := range have {
			k := h.IP.String() + h.HardwareAddr.String()
			if _, ok := want[k]; ok && h.State&netlink.NUD_PERMANENT != 0 {
				delete(want, k)
				continue
			}
			if h.State&netlink.NUD_NOARP != 0 || len(h.HardwareAddr) == 0 {
				continue // multicast and unresolved: the kernel's own
			}
			h.Family = family
			if family == unix.AF_BRIDGE {
				h.Flags = netlink.NTF_SELF
			}
			if err := netlink.NeighDel(&h); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("remove neighbour %s of %s: %w", h.IP, tunnelName, err))
			}
		}
	}
	prune(neighs, wantNeigh, netlink.FAMILY_V4)
	prune(fdb, wantFDB, unix.AF_BRIDGE)
	for _, m := range []map[string]netlink.Neigh{wantNeigh, wantFDB} {
		for _, w := range m {
			if err := netlink.NeighSet(&w); err != nil {
				errs = append(errs, fmt.Errorf("set neighbour %s of %s: %w", w.IP, tunnelName, err))
			}
		}
	}
	return errors.Join(errs...)
}

// serviceRoute makes ClusterIPs routable on the host. The bridge has no port: a
// packet for an address that no Service has ends there with "host unreachable"
// instead of leaving by the default route. A bridge and not a dummy, because
// every kernel that runs pods has bridges.
func serviceRoute(cidr netip.Prefix, src netip.Addr) error {
	l, err := netlink.LinkByName(serviceBridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = serviceBridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("make the bridge %s: %w", serviceBridge, err)
		}
		l, err = netlink.LinkByName(serviceBridge)
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", serviceBridge, err)
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", serviceBridge, err)
		}
	}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Attrs().Index, Protocol: RouteProtocol}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", serviceBridge, err)
	}
	found := false
	for _, h := range have {
		if dst, ok := prefixOf(h.Dst); ok && dst == cidr.Masked() && h.Src.Equal(src.AsSlice()) {
			found = true
			continue
		}
		if err := netlink.RouteDel(&h); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("remove old service route %s: %w", h.Dst, err)
		}
	}
	if found {
		return nil
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(cidr.Masked()), Src: src.AsSlice(), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("route of the service CIDR %s over %s: %w", cidr, serviceBridge, err)
	}
	return nil
}

// forwarding turns on what routing between pods needs. A read-only /proc/sys is
// no error where the value is right already.
func forwarding() error {
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		// Without it, a Service whose pod is on the client's own bridge
		// answers from the wrong address. Modules may be built in or refused.
		_ = exec.Command("modprobe", "br_netfilter").Run()
	}
	err := setSysctl("net/ipv4/ip_forward", "1")
	if _, serr := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); serr == nil {
		err = errors.Join(err, setSysctl("net/bridge/bridge-nf-call-iptables", "1"))
	}
	return err
}

func setSysctl(key, value string) error {
	path := "/proc/sys/" + key
	b, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(b)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("pod network: set %s to %s: %w: set it with sysctl where this host is configured", strings.ReplaceAll(key, "/", "."), value, err)
	}
	return nil
}
