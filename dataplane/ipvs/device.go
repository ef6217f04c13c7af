package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const deviceName = "kube-ipvs0"

// device is the link that holds service addresses.
type device struct {
	h    *netlink.Handle
	link netlink.Link
	refs map[netip.Addr]int
}

// ensure makes the device if it is missing. It stays down: its addresses are local all the same, and it sends and
// receives nothing.
func (d *device) ensure() error {
	l, err := d.h.LinkByName(deviceName)
	if err == nil {
		d.link = l
		return nil
	}
	var missing netlink.LinkNotFoundError
	if !errors.As(err, &missing) {
		return fmt.Errorf("look up device %s: %w", deviceName, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = deviceName
	err = d.h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, syscall.EOPNOTSUPP) { // no dummy devices in this kernel
		err = d.h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("make device %s for service addresses: %w", deviceName, err)
	}
	if d.link, err = d.h.LinkByName(deviceName); err != nil {
		return fmt.Errorf("look up device %s: %w", deviceName, err)
	}
	return nil
}

func ipNet(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
}

func (d *device) put(a netip.Addr) error {
	addr := ipNet(a)
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := d.h.AddrAdd(d.link, addr); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", a, deviceName, err)
	}
	return nil
}

func (d *device) take(a netip.Addr) error {
	if err := d.h.AddrDel(d.link, ipNet(a)); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %s from %s: %w", a, deviceName, err)
	}
	return nil
}

func (d *device) hold(addrs []netip.Addr) error {
	for _, a := range addrs {
		if d.refs[a] == 0 {
			if err := d.put(a); err != nil {
				return err
			}
		}
		d.refs[a]++
	}
	return nil
}

func (d *device) drop(addrs []netip.Addr) error {
	for _, a := range addrs {
		if d.refs[a]--; d.refs[a] <= 0 {
			delete(d.refs, a)
			if err := d.take(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// addrs reads the addresses of one family on the device.
func (d *device) addrs(f dataplane.Family) (map[netip.Addr]bool, error) {
	list, err := d.h.AddrList(d.link, nlFamily(f))
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", deviceName, err)
	}
	out := map[netip.Addr]bool{}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.IsLinkLocalUnicast() {
			out[ip.Unmap()] = true
		}
	}
	return out, nil
}

func (d *device) remove() error {
	d.refs = map[netip.Addr]int{}
	l, err := d.h.LinkByName(deviceName)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = d.h.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", deviceName, err)
	}
	return nil
}

func nlFamily(f dataplane.Family) int {
	if f == dataplane.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// ownAddrs reads the node's addresses; limit, if any, says on which of them node ports are.
func ownAddrs(h *netlink.Handle, limit []netip.Prefix) (nodeAddrs, error) {
	node := nodeAddrs{all: map[netip.Addr]bool{}}
	dev := 0
	if l, err := h.LinkByName(deviceName); err == nil {
		dev = l.Attrs().Index
	}
	list, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return node, fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		if !ok || a.LinkIndex == dev || ip.IsLoopback() || ip.IsLinkLocalUnicast() || node.all[ip] {
			continue
		}
		node.all[ip] = true
		if len(limit) == 0 || slices.ContainsFunc(limit, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			node.nodePort = append(node.nodePort, ip)
		}
	}
	slices.SortFunc(node.nodePort, netip.Addr.Compare)
	return node, nil
}

// settings are the kernel settings that IPVS in this shape needs.
var settings = []struct{ name, value string }{
	{"net/ipv4/vs/conntrack", "1"},                 // masquerading of balanced connections needs tracking
	{"net/ipv4/vs/expire_nodest_conn", "1"},        // a connection to a destination that is gone ends at once
	{"net/ipv4/vs/expire_quiescent_template", "1"}, // affinity does not lead to a draining destination
	{"net/ipv4/vs/conn_reuse_mode", "1"},           // a reused client port is a new connection
	{"net/ipv4/conf/all/arp_ignore", "1"},          // service addresses are on every node: do not answer ARP for them
	{"net/ipv4/conf/all/arp_announce", "2"},
	{"net/bridge/bridge-nf-call-iptables", "1"}, // replies between pods of one bridge are translated back
}

// prepareKernel makes the settings. A read-only /proc/sys (a container) is the operator's choice; others are errors.
func prepareKernel() error {
	var errs []error
	for _, s := range settings {
		path := "/proc/sys/" + s.name
		if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == s.value {
			continue
		}
		err := os.WriteFile(path, []byte(s.value), 0o644)
		if err != nil && !errors.Is(err, unix.EROFS) && !errors.Is(err, fs.ErrPermission) {
			errs = append(errs, fmt.Errorf("set %s to %s: %w", s.name, s.value, err))
		}
	}
	return errors.Join(errs...)
}
