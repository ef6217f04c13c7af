package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// setTypes are the sets' types. Every set is made with the first revision of its type, for old kernels' sake.
var setTypes = map[setName]string{
	setServers: "hash:ip,port", setActive: "hash:ip,port", setAddrs: "hash:ip", setCluster: "hash:ip,port",
	setExternal: "hash:ip,port", setLoop: "hash:ip,port,ip", setGuarded: "hash:ip,port", setSources: "hash:ip,port,net",
	setRefuse: "hash:ip,port", setDrop: "hash:ip,port",
}

const maxElements = 1 << 20

func (n setName) of(f dataplane.Family) string {
	if f == dataplane.IPv6 {
		return string(n) + "6"
	}
	return string(n)
}

// sets keeps one family's sets, and counts for each element how many owners want it.
type sets struct {
	f     dataplane.Family
	h     *netlink.Handle
	sock  *nl.SocketHandle // for what netlink.Handle does not offer
	refs  map[entry]int
	names map[setName]uint16 // the kernel's numbers
}

func newSets(f dataplane.Family, h *netlink.Handle) (*sets, error) {
	sock, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open ipset: %w", err)
	}
	return &sets{f: f, h: h, sock: &nl.SocketHandle{Socket: sock}, refs: map[entry]int{}}, nil
}

func (s *sets) close() { s.sock.Socket.Close() }

// ensure creates the sets that are missing and learns their numbers; changed says whether any number is new.
func (s *sets) ensure() (changed bool, err error) {
	family := uint8(unix.AF_INET)
	if s.f == dataplane.IPv6 {
		family = unix.AF_INET6
	}
	numbers := map[setName]uint16{}
	for n, typ := range setTypes {
		err := s.h.IpsetCreate(n.of(s.f), typ, netlink.IpsetCreateOptions{Replace: true, Family: family, MaxElements: maxElements})
		if err != nil {
			return false, fmt.Errorf("create IP set %s (%s): %w", n.of(s.f), typ, err)
		}
		i, err := s.number(n.of(s.f))
		if err != nil {
			return false, fmt.Errorf("look up IP set %s: %w", n.of(s.f), err)
		}
		numbers[n] = i
		changed = changed || s.names == nil || s.names[n] != i
	}
	s.names = numbers
	return changed, nil
}

// number asks for a set's index, which is what a rule names it by (IPSET_CMD_GET_BYNAME, since Linux 4.20).
func (s *sets) number(name string) (uint16, error) {
	const getByName, attrIndex = 14, 11
	req := nl.NewNetlinkRequest(getByName|(unix.NFNL_SUBSYS_IPSET<<8), unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: s.sock}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(7)))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		if len(m) < 4 {
			continue
		}
		for a := range nl.ParseAttributes(m[4:]) {
			if a.Type&nl.NLA_TYPE_MASK == attrIndex && len(a.Value) >= 2 {
				return binary.BigEndian.Uint16(a.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel named no index")
}

// hold counts entries in; drop counts them out. Elements change in the kernel when a count leaves or reaches 0.
func (s *sets) hold(entries []entry) error {
	for _, e := range entries {
		if s.refs[e] == 0 {
			if err := s.put(e, true); err != nil {
				return err
			}
		}
		s.refs[e]++
	}
	return nil
}

func (s *sets) drop(entries []entry) error {
	for _, e := range entries {
		if s.refs[e] == 1 {
			if err := s.put(e, false); err != nil {
				return err
			}
			delete(s.refs, e)
		} else if s.refs[e] > 1 {
			s.refs[e]--
		}
	}
	return nil
}

// put adds or removes an element; one that is there, or is not, is no error.
func (s *sets) put(e entry, add bool) error {
	el := &netlink.IPSetEntry{IP: e.addr.AsSlice(), Replace: true}
	if e.port != 0 {
		port, proto := e.port, uint8(e.proto)
		el.Port, el.Protocol = &port, &proto
	}
	if e.other.IsValid() {
		el.IP2 = e.other.Addr().AsSlice()
		if setTypes[e.set] == "hash:ip,port,net" {
			el.CIDR2 = uint8(e.other.Bits())
		}
	}
	name := e.set.of(s.f)
	if add {
		if err := s.h.IpsetAdd(name, el); err != nil {
			return fmt.Errorf("add %s:%d %s to IP set %s: %w", e.addr, e.port, e.other, name, err)
		}
		return nil
	}
	el.Replace = true
	if err := s.h.IpsetDel(name, el); err != nil && !absent(err) {
		return fmt.Errorf("remove %s:%d %s from IP set %s: %w", e.addr, e.port, e.other, name, err)
	}
	return nil
}

// absent recognises the errors for a set or an element that does not exist.
func absent(err error) bool {
	var e nl.IPSetError
	if errors.As(err, &e) && e == nl.IPSET_ERR_EXIST {
		return true
	}
	return errors.Is(err, syscall.ENOENT)
}

// list reads the elements of a set.
func (s *sets) list(n setName) (map[entry]bool, error) {
	r, err := s.h.IpsetList(n.of(s.f))
	if err != nil {
		if absent(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("list IP set %s: %w", n.of(s.f), err)
	}
	out := map[entry]bool{}
	for _, el := range r.Entries {
		e := entry{set: n}
		a, ok := netip.AddrFromSlice(el.IP)
		if !ok {
			continue
		}
		e.addr = a
		if el.Port != nil {
			e.port = *el.Port
		}
		if el.Protocol != nil {
			e.proto = dataplane.Protocol(*el.Protocol)
		}
		if a2, ok := netip.AddrFromSlice(el.IP2); ok {
			bits := a2.BitLen()
			if el.CIDR2 != 0 {
				bits = int(el.CIDR2)
			}
			e.other = netip.PrefixFrom(a2, bits)
		}
		out[e] = true
	}
	return out, nil
}

// sync makes a set hold exactly what is counted.
func (s *sets) sync(n setName) error {
	have, err := s.list(n)
	if err != nil {
		return err
	}
	for e := range s.refs {
		if e.set == n && !have[e] {
			if err := s.put(e, true); err != nil {
				return err
			}
		}
	}
	for e := range have {
		if s.refs[e] == 0 {
			if err := s.put(e, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// destroyWait bounds the wait for the kernel to let go of the sets: nf_tables frees deleted rules, and with them
// their hold on sets, some time after the transaction.
const destroyWait = 30 * time.Second

// destroy removes the sets; no rule may use them any more.
func (s *sets) destroy(ctx context.Context) error {
	s.refs, s.names = map[entry]int{}, nil
	ctx, cancel := context.WithTimeout(ctx, destroyWait)
	defer cancel()
	var errs []error
	for n := range setTypes {
		for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
			err := s.h.IpsetDestroy(n.of(s.f))
			if err == nil || absent(err) {
				break
			}
			var code nl.IPSetError
			if errors.As(err, &code) && code == nl.IPSET_ERR_BUSY && pause(ctx, wait) {
				continue
			}
			errs = append(errs, fmt.Errorf("destroy IP set %s: %w", n.of(s.f), err))
			break
		}
	}
	return errors.Join(errs...)
}

// pause waits; false: ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
