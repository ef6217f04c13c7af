package main

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/tripod-cluster/tripod/nodeagent/config"
)

// nodeIP finds the address by which others reach this host: the configured one,
// or the first address of the interface that leads to one of the API peers. The
// first, since a peer's virtual address may be on the same interface for a time.
func nodeIP(c config.Config, peers []string) (netip.Addr, error) {
	if c.NodeIP != "" {
		return netip.ParseAddr(c.NodeIP)
	}
	var last error
	for _, p := range peers {
		conn, err := net.Dial("udp4", p) // sends nothing: it only asks for a route
		if err != nil {
			last = err
			continue
		}
		local, err := netip.ParseAddrPort(conn.LocalAddr().String())
		conn.Close()
		if err != nil {
			last = err
			continue
		}
		ip, err := firstOnInterface(local.Addr().Unmap())
		if err == nil {
			return ip, nil
		}
		last = err
	}
	if last == nil {
		last = fmt.Errorf("no API peer is known")
	}
	return netip.Addr{}, fmt.Errorf("find this node's address: %w: set nodeIP in %s", last, config.Path)
}

// firstOnInterface gives the first IPv4 address of the interface that has ip.
func firstOnInterface(ip netip.Addr) (netip.Addr, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		var first netip.Addr
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() {
				continue
			}
			if !first.IsValid() {
				first = p.Addr()
			}
			if p.Addr() == ip {
				return first, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("no interface has the address %s", ip)
}
