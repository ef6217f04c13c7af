package vip

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (h *Holder) announce(link netlink.Link) error {
	mac := link.Attrs().HardwareAddr
	if len(mac) != 6 {
		return fmt.Errorf("interface %s has no Ethernet address", link.Attrs().Name)
	}
	if h.addr.Is4() {
		return sendARP(link.Attrs().Index, gratuitousARP(h.addr, mac))
	}
	return sendNeighborAdvertisement(link.Attrs().Index, neighborAdvertisement(h.addr, mac))
}

// gratuitousARP is an ARP announcement (RFC 5227 section 3): a request in which
// sender and target address are the announced one.
func gratuitousARP(a netip.Addr, mac net.HardwareAddr) []byte {
	p := make([]byte, 28)
	binary.BigEndian.PutUint16(p[0:], 1) // Ethernet
	binary.BigEndian.PutUint16(p[2:], unix.ETH_P_IP)
	p[4], p[5] = 6, 4
	binary.BigEndian.PutUint16(p[6:], 1) // request
	copy(p[8:], mac)
	copy(p[14:], a.AsSlice())
	copy(p[24:], a.AsSlice())
	return p
}

func sendARP(ifindex int, p []byte) error {
	const proto = uint16(unix.ETH_P_ARP&0xff<<8 | unix.ETH_P_ARP>>8) // network byte order, packet(7)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifindex, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	if err := unix.Sendto(fd, p, 0, to); err != nil {
		return fmt.Errorf("send gratuitous ARP: %w", err)
	}
	return nil
}

// neighborAdvertisement is an unsolicited neighbour advertisement with the
// override flag (RFC 4861 section 4.4); the kernel fills the checksum.
func neighborAdvertisement(a netip.Addr, mac net.HardwareAddr) []byte {
	p := make([]byte, 32)
	p[0] = 136
	p[4] = 0x20 // override
	copy(p[8:], a.AsSlice())
	p[24], p[25] = 2, 1 // target link-layer address, in units of 8 bytes
	copy(p[26:], mac)
	return p
}

func sendNeighborAdvertisement(ifindex int, p []byte) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("open ICMPv6 socket: %w", err)
	}
	defer unix.Close(fd)
	// Receivers drop advertisements whose hop limit is not 255.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return fmt.Errorf("set hop limit: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, ifindex); err != nil {
		return fmt.Errorf("choose interface: %w", err)
	}
	all := &unix.SockaddrInet6{ZoneId: uint32(ifindex), Addr: [16]byte{0: 0xff, 1: 0x02, 15: 1}}
	if err := unix.Sendto(fd, p, 0, all); err != nil {
		return fmt.Errorf("send neighbour advertisement: %w", err)
	}
	return nil
}
