// Package vip holds one virtual address on an interface of this host while the
// caller says so, and tells the neighbours.
//
// The address is added with a short kernel lifetime that is renewed each second
// (IFA_CACHEINFO, rtnetlink(7)): a holder that hangs or is killed loses it within
// Lifetime, without anybody's help, so that a stalled former leader cannot keep
// clients. A holder that ends in order releases it at once.
//
// It needs CAP_NET_ADMIN for the address and CAP_NET_RAW for the announcements.
package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// Lifetime is how long the address outlives a holder that stopped renewing.
	Lifetime = 3 * time.Second
	renewal  = time.Second
	// announcements are repeated, as a switch or a neighbour may lose one.
	announceTimes = 5
	announceEvery = 200 * time.Millisecond
	// Neighbours that missed all of the first ones learn it by a slow repeat.
	reannounce = 30 * time.Second
)

// Holder holds one address. It is made by New and used by one goroutine.
type Holder struct {
	addr netip.Addr
	log  *slog.Logger
}

// New makes a holder of addr. It touches nothing.
func New(addr netip.Addr, log *slog.Logger) *Holder {
	return &Holder{addr: addr.Unmap(), log: log.With("vip", addr.String())}
}

// Interface finds the link whose network contains addr. The error names the
// networks that this host has.
func Interface(addr netip.Addr) (netlink.Link, error) {
	addr = addr.Unmap()
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var have []string
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		as, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range as {
			ones, bits := a.Mask.Size()
			if ones == bits { // a host address, maybe the virtual one itself
				continue
			}
			if a.IPNet.Contains(addr.AsSlice()) {
				return l, nil
			}
			have = append(have, a.IPNet.String()+" on "+l.Attrs().Name)
		}
	}
	return nil, fmt.Errorf("no interface of this host has a network that contains the virtual address %s (it has %v)", addr, have)
}

// Hold adds the address, announces it, and keeps it until ctx ends, when it is
// released before Hold returns. An error means that the address is not held.
func (h *Holder) Hold(ctx context.Context) error {
	link, err := Interface(h.addr)
	if err != nil {
		return err
	}
	if err := h.renew(link); err != nil {
		return err
	}
	defer h.release(link)
	h.log.Info("virtual address taken", "interface", link.Attrs().Name)
	said := 0
	renew, announce := time.NewTicker(renewal), time.NewTimer(0)
	defer renew.Stop()
	defer announce.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renew.C:
			if err := h.renew(link); err != nil {
				return err
			}
		case <-announce.C:
			if err := h.announce(link); err != nil {
				h.log.Warn("virtual address not announced; neighbours may go on talking to its former holder until their caches expire", "error", err)
			}
			next := announceEvery
			if said++; said >= announceTimes {
				next = reannounce
			}
			announce.Reset(next)
		}
	}
}

// Release removes the address if this host has it, as after a crash of an
// earlier holder.
func (h *Holder) Release() error {
	link, err := Interface(h.addr)
	if err != nil {
		return err
	}
	return h.release(link)
}

func (h *Holder) netlinkAddr() *netlink.Addr {
	bits := h.addr.BitLen()
	a := &netlink.Addr{IPNet: &net.IPNet{IP: h.addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}}
	if h.addr.Is6() {
		a.Flags = unix.IFA_F_NODAD // the former holder may still have it for a moment
	}
	return a
}

func (h *Holder) renew(link netlink.Link) error {
	a := h.netlinkAddr()
	a.ValidLft, a.PreferedLft = int(Lifetime/time.Second), int(Lifetime/time.Second)
	if err := netlink.AddrReplace(link, a); err != nil {
		return fmt.Errorf("add virtual address %s to %s: %w (the service needs CAP_NET_ADMIN: `controld init --vip` grants it in a drop-in)", h.addr, link.Attrs().Name, err)
	}
	return nil
}

func (h *Holder) release(link netlink.Link) error {
	err := netlink.AddrDel(link, h.netlinkAddr())
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	if err != nil {
		h.log.Error("virtual address not released; the kernel drops it when its lifetime ends", "error", err, "lifetime", Lifetime)
		return fmt.Errorf("remove virtual address %s from %s: %w", h.addr, link.Attrs().Name, err)
	}
	h.log.Info("virtual address released", "interface", link.Attrs().Name)
	return nil
}
