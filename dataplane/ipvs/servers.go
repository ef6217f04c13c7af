package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/moby/ipvs"
	"github.com/tripod-cluster/tripod/dataplane"
)

// DrainLimit is how long a removed destination may keep its connections.
const DrainLimit = 15 * time.Minute

const persistent = 1 // IP_VS_SVC_F_PERSISTENT

// virtual is a virtual server as the kernel has it.
type virtual struct {
	owner    dataplane.ID
	affinity uint32
	sched    string
	dests    map[netip.AddrPort]time.Time // when to give up draining it; zero: it takes new connections
}

func (v *virtual) draining() bool {
	for _, t := range v.dests {
		if !t.IsZero() {
			return true
		}
	}
	return len(v.dests) == 0
}

// table keeps one family's virtual servers.
type table struct {
	h       *ipvs.Handle
	sched   string
	set     *sets // for the record of what is ours
	virtual map[serverKey]*virtual
	now     func() time.Time
}

func (t *table) service(k serverKey, affinity uint32) *ipvs.Service {
	s := &ipvs.Service{
		Address: k.addr.Addr().AsSlice(), Port: k.addr.Port(), Protocol: uint16(k.proto),
		SchedName: t.sched, AddressFamily: syscall.AF_INET, Netmask: 0xffffffff,
	}
	if k.addr.Addr().Is6() {
		s.AddressFamily, s.Netmask = syscall.AF_INET6, 128
	}
	if affinity > 0 {
		s.Flags, s.Timeout = persistent, affinity
	}
	return s
}

func destination(a netip.AddrPort, weight int) *ipvs.Destination {
	d := &ipvs.Destination{Address: a.Addr().AsSlice(), Port: a.Port(), Weight: weight,
		ConnectionFlags: ipvs.ConnectionFlagMasq, AddressFamily: syscall.AF_INET}
	if a.Addr().Is6() {
		d.AddressFamily = syscall.AF_INET6
	}
	return d
}

// ensure makes a virtual server with these destinations; others that it has drain.
func (t *table) ensure(owner dataplane.ID, want server) error {
	v := t.virtual[want.key]
	svc := t.service(want.key, want.affinity)
	switch {
	case v == nil:
		if err := t.set.hold([]entry{in(setServers, want.key)}); err != nil {
			return err
		}
		if err := t.h.NewService(svc); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("make virtual server %s: %w", want.key, err)
		} else if err != nil {
			if err := t.h.UpdateService(svc); err != nil {
				return fmt.Errorf("take over virtual server %s: %w", want.key, err)
			}
		}
		v = &virtual{dests: map[netip.AddrPort]time.Time{}}
		t.virtual[want.key] = v
	case v.affinity != want.affinity || v.sched != t.sched:
		if err := t.h.UpdateService(svc); err != nil {
			return fmt.Errorf("change virtual server %s: %w", want.key, err)
		}
	}
	v.owner, v.affinity, v.sched = owner, want.affinity, t.sched
	for _, a := range want.dests {
		until, have := v.dests[a]
		switch {
		case !have:
			err := t.h.NewDestination(svc, destination(a, 1))
			if errors.Is(err, syscall.EEXIST) {
				err = t.h.UpdateDestination(svc, destination(a, 1))
			}
			if err != nil {
				return fmt.Errorf("add destination %s to virtual server %s: %w", a, want.key, err)
			}
		case !until.IsZero():
			if err := t.h.UpdateDestination(svc, destination(a, 1)); err != nil {
				return fmt.Errorf("bring destination %s of virtual server %s back: %w", a, want.key, err)
			}
		}
		v.dests[a] = time.Time{}
	}
	for a, until := range v.dests {
		if until.IsZero() && !slices.Contains(want.dests, a) {
			if err := t.retire(want.key, v, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// retire takes a destination out of new connections. UDP has no connections worth waiting for: a client that keeps
// its port would never leave.
func (t *table) retire(k serverKey, v *virtual, a netip.AddrPort) error {
	if k.proto == dataplane.UDP {
		return t.removeDest(k, v, a)
	}
	if err := t.h.UpdateDestination(t.service(k, v.affinity), destination(a, 0)); err != nil {
		return fmt.Errorf("drain destination %s of virtual server %s: %w", a, k, err)
	}
	v.dests[a] = t.now().Add(DrainLimit)
	return nil
}

func (t *table) removeDest(k serverKey, v *virtual, a netip.AddrPort) error {
	err := t.h.DelDestination(t.service(k, v.affinity), destination(a, 0))
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("remove destination %s from virtual server %s: %w", a, k, err)
	}
	delete(v.dests, a)
	return nil
}

// idle lets a virtual server of owner drain, for a service that exists without endpoints.
func (t *table) idle(owner dataplane.ID, k serverKey) error {
	v := t.virtual[k]
	if v == nil || v.owner != owner {
		return nil
	}
	for a, until := range v.dests {
		if until.IsZero() {
			if err := t.retire(k, v, a); err != nil {
				return err
			}
		}
	}
	if len(v.dests) == 0 {
		return t.remove(owner, k)
	}
	return nil
}

// remove removes a virtual server of owner with all its connections.
func (t *table) remove(owner dataplane.ID, k serverKey) error {
	v := t.virtual[k]
	if v == nil || v.owner != owner {
		return nil // another service's by now
	}
	if err := t.h.DelService(t.service(k, v.affinity)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("remove virtual server %s: %w", k, err)
	}
	delete(t.virtual, k)
	return t.set.drop([]entry{in(setServers, k)})
}

// read takes over from the kernel the virtual servers that the record names as ours.
func (t *table) read(f dataplane.Family, record map[entry]bool) error {
	t.virtual = map[serverKey]*virtual{}
	svcs, err := t.h.GetServices()
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	for _, s := range svcs {
		a, ok := netip.AddrFromSlice(s.Address)
		if !ok || s.FWMark != 0 || dataplane.FamilyOf(a) != f {
			continue
		}
		k := key(a.Unmap(), s.Port, dataplane.Protocol(s.Protocol))
		if !record[in(setServers, k)] {
			continue
		}
		v := &virtual{sched: s.SchedName, dests: map[netip.AddrPort]time.Time{}}
		if s.Flags&persistent != 0 {
			v.affinity = s.Timeout
		}
		dests, err := t.h.GetDestinations(s)
		if err != nil {
			return fmt.Errorf("list destinations of virtual server %s: %w", k, err)
		}
		for _, d := range dests {
			if da, ok := destAddr(d); ok {
				var until time.Time
				if d.Weight == 0 {
					until = t.now().Add(DrainLimit)
				}
				v.dests[da] = until
			}
		}
		t.virtual[k] = v
	}
	return nil
}

func destAddr(d *ipvs.Destination) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(d.Address)
	return netip.AddrPortFrom(a.Unmap(), d.Port), ok
}

// drained removes draining destinations that have no connections left or took too long, and virtual servers that
// have nothing left. It says whether any is still draining.
func (t *table) drained() (more bool, err error) {
	now := t.now()
	for k, v := range t.virtual {
		if !v.draining() {
			continue
		}
		dests, err := t.h.GetDestinations(t.service(k, v.affinity))
		if err != nil {
			return more, fmt.Errorf("list destinations of virtual server %s: %w", k, err)
		}
		for _, d := range dests {
			a, ok := destAddr(d)
			until := v.dests[a]
			if !ok || until.IsZero() {
				continue
			}
			if d.ActiveConnections+d.InactiveConnections > 0 && now.Before(until) {
				more = true
				continue
			}
			if err := t.removeDest(k, v, a); err != nil {
				return more, err
			}
		}
		if len(v.dests) == 0 {
			if err := t.remove(v.owner, k); err != nil {
				return more, err
			}
		}
	}
	return more, nil
}
