package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/tripod-cluster/tripod/dataplane"
)

// Sync implements dataplane.Backend.
func (b *Backend) Sync(ctx context.Context, all []*dataplane.Service) error {
	defer b.counted()
	if err := prepareKernel(); err != nil {
		b.log.Warn("kernel setting for service balancing could not be made", "err", err)
	}
	var err error
	if b.node, err = ownAddrs(b.nl, b.cfg.NodePortAddresses); err != nil {
		return err
	}
	if err := b.dev.ensure(); err != nil {
		return err
	}
	b.device.Store(int64(b.dev.link.Attrs().Index))
	b.dev.refs = map[netip.Addr]int{}
	errs := dataplane.ServiceErrors{}
	for _, f := range b.families {
		mine := byFamily(all, f.f)
		if len(mine) == 0 && !f.active {
			if !f.clean {
				if err := b.cleanFamily(ctx, f); err != nil {
					return err
				}
			}
			continue
		}
		if err := b.syncFamily(ctx, f, mine, errs); err != nil {
			return fmt.Errorf("%s: %w", f.f, err)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// syncFamily makes one family hold exactly these services. Device references of the family must not be counted yet.
func (b *Backend) syncFamily(ctx context.Context, f *family, all []*dataplane.Service, errs dataplane.ServiceErrors) error {
	f.active, f.clean = true, false
	if _, err := f.set.ensure(); err != nil {
		return err
	}
	record, err := f.set.list(setServers)
	if err != nil {
		return err
	}
	f.reset()
	if err := f.table.read(f.f, record); err != nil {
		return err
	}
	for k := range f.table.virtual {
		f.set.refs[in(setServers, k)] = 1
	}
	plans := map[dataplane.ID]*wanted{}
	expected := map[serverKey]bool{} // servers and idle keys that some service has
	for _, s := range all {
		want, err := plan(s, b.node)
		if err != nil {
			errs[s.ID] = err
			continue
		}
		plans[s.ID], f.services[s.ID] = want, s
		for _, k := range append(keysOf(want.servers), want.idle...) {
			expected[k] = true
			if v := f.table.virtual[k]; v != nil {
				v.owner = s.ID
			}
		}
		for _, e := range want.entries {
			f.set.refs[e]++
		}
	}
	// Addresses, then servers, then the sets that let connections in and mark them, then the rules over the sets.
	if err := b.syncAddrs(f, plans); err != nil {
		return err
	}
	for id, want := range plans {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.serve(id, want); err != nil {
			errs[id] = err
			continue
		}
		if err := f.leave(id, &wanted{}, want); err != nil {
			errs[id] = err
			continue
		}
		f.have[id] = want
	}
	for k, v := range f.table.virtual {
		if !expected[k] {
			if err := f.table.remove(v.owner, k); err != nil {
				return err
			}
		}
	}
	for n := range setTypes {
		if err := f.set.sync(n); err != nil {
			return err
		}
	}
	f.w.SetBase(base(f.f, f.cidr, b.cfg.MasqueradeAll, b.mark, f.set.names))
	return f.w.Sync(ctx, nil)
}

// syncAddrs makes the device hold the addresses of these plans.
func (b *Backend) syncAddrs(f *family, plans map[dataplane.ID]*wanted) error {
	have, err := b.dev.addrs(f.f)
	if err != nil {
		return err
	}
	for _, want := range plans {
		for _, a := range want.addrs {
			if b.dev.refs[a]++; !have[a] {
				if err := b.dev.put(a); err != nil {
					return err
				}
				have[a] = true
			}
		}
	}
	for a := range have {
		if b.dev.refs[a] == 0 {
			if err := b.dev.take(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// Cleanup implements dataplane.Backend.
func (b *Backend) Cleanup(ctx context.Context) error {
	var errs []error
	for _, f := range b.families {
		if err := b.cleanFamily(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.f, err))
		}
	}
	errs = append(errs, b.dev.remove())
	b.counted()
	return errors.Join(errs...)
}

// cleanFamily removes one family's rules, servers and sets, but not the device.
func (b *Backend) cleanFamily(ctx context.Context, f *family) error {
	if err := f.w.Cleanup(ctx); err != nil { // the rules use the sets
		return err
	}
	record, err := f.set.list(setServers)
	if err != nil {
		return err
	}
	f.reset()
	if len(record) > 0 {
		if err := f.table.read(f.f, record); err != nil {
			return err
		}
		for k, v := range f.table.virtual {
			if err := f.table.remove(v.owner, k); err != nil {
				return err
			}
		}
	}
	f.active, f.clean = f.f == dataplane.IPv4, true
	return f.set.destroy(ctx)
}
