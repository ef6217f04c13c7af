// Package conntrack forgets tracked UDP flows that lead to backends which left. A flow keeps a client's source port
// tied to the backend it was first translated to for as long as datagrams come, whatever the rules say by then.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cleaner implements dataplane.FlowCleaner with the kernel's connection tracking table.
type Cleaner struct{ h *netlink.Handle }

// New opens a Cleaner for the network namespace of the calling thread.
func New() (*Cleaner, error) {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return &Cleaner{h: h}, nil
}

// Close releases the sockets.
func (c *Cleaner) Close() { c.h.Close() }

// Clean implements dataplane.FlowCleaner. It lists the table once for each family concerned.
func (c *Cleaner) Clean(ctx context.Context, services []*dataplane.Service) (int, error) {
	total := 0
	var errs []error
	for _, f := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		filter := newFilter(f, services)
		if filter == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return total, err
		}
		if len(filter.nodePorts) > 0 {
			if err := filter.learnLocal(c.h, f); err != nil {
				errs = append(errs, err)
			}
		}
		family := netlink.InetFamily(unix.AF_INET)
		if f == dataplane.IPv6 {
			family = unix.AF_INET6
		}
		n, err := c.h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		total += int(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete %s flows: %w", f, err))
		}
	}
	return total, errors.Join(errs...)
}

// filter picks stale flows; it is a netlink.CustomConntrackFilter.
type filter struct {
	addrs     map[netip.AddrPort]backends
	nodePorts map[uint16]backends
	local     map[netip.Addr]bool
}

type backends map[netip.AddrPort]bool

// newFilter gives nil where no service is a UDP service of the family. A later service of the same address overrules
// an earlier one: callers put what is gone before what is there.
func newFilter(f dataplane.Family, services []*dataplane.Service) *filter {
	x := &filter{addrs: map[netip.AddrPort]backends{}, nodePorts: map[uint16]backends{}, local: map[netip.Addr]bool{}}
	for _, s := range services {
		if s.Protocol != dataplane.UDP || s.Family != f {
			continue
		}
		b := backends{}
		for _, e := range s.Endpoints {
			if e.Ready || e.Serving {
				b[e.Addr] = true
			}
		}
		for _, a := range s.VirtualAddrs() {
			x.addrs[a] = b
		}
		if s.NodePort != 0 {
			x.nodePorts[s.NodePort] = b
		}
	}
	if len(x.addrs)+len(x.nodePorts) == 0 {
		return nil
	}
	return x
}

func (x *filter) learnLocal(h *netlink.Handle, f dataplane.Family) error {
	family := netlink.FAMILY_V4
	if f == dataplane.IPv6 {
		family = netlink.FAMILY_V6
	}
	addrs, err := h.AddrList(nil, family)
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			x.local[ip.Unmap()] = true
		}
	}
	return nil
}

// MatchConntrackFlow says whether a flow is to be deleted: it is addressed to one of the services and its replies
// come from something that is no backend of it (the address itself, when it was never translated).
func (x *filter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := addrPort(flow.Forward.DstIP, flow.Forward.DstPort)
	if !ok {
		return false
	}
	b, ok := x.addrs[dst]
	if !ok {
		b, ok = x.nodePorts[dst.Port()]
		if !ok || !x.local[dst.Addr()] {
			return false
		}
	}
	from, ok := addrPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	return ok && !b[from]
}

func addrPort(ip net.IP, port uint16) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port), ok
}
