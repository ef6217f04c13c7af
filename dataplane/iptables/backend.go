package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/xtables"
)

// Config is what New needs; the zero value works.
type Config struct {
	// ClusterCIDRs are the pods' ranges, at most one in each family. Connections to a cluster address from elsewhere
	// are masqueraded. Without one no connection to a cluster address is.
	ClusterCIDRs []netip.Prefix
	// MasqueradeAll masquerades every connection to a cluster address.
	MasqueradeAll bool
	// MasqueradeBit is the bit of the packet mark that asks for masquerading, 0 to 31; default 14.
	MasqueradeBit *int
	// NodePortAddresses limits node ports to the node's addresses in these ranges; empty: all of them.
	NodePortAddresses []netip.Prefix
	// LocalhostNodePorts opens node ports on 127.0.0.1 too (sets net.ipv4.conf.all.route_localnet).
	LocalhostNodePorts bool

	Logger *slog.Logger // default: slog.Default()
}

// Backend implements dataplane.Backend.
type Backend struct {
	cfg      Config
	families []*family
	log      *slog.Logger
}

// family is the rules of one IP family. IPv6's tables are not touched before there is an IPv6 service.
type family struct {
	f      dataplane.Family
	w      *xtables.Writer
	pol    policy
	active bool
	clean  bool // nothing of ours is in the kernel
}

// New opens the sockets, in the network namespace of the calling thread, and writes nothing.
func New(cfg Config) (*Backend, error) {
	bit := 14
	if cfg.MasqueradeBit != nil {
		bit = *cfg.MasqueradeBit
	}
	if bit < 0 || bit > 31 {
		return nil, fmt.Errorf("masquerade bit %d is not between 0 and 31", bit)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	b := &Backend{cfg: cfg, log: cfg.Logger}
	for _, f := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		w, err := xtables.Open(xtables.Family(f), base(f, cfg, uint32(1)<<bit))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("iptables backend: %w", err), b.Close())
		}
		fam := &family{f: f, w: w, active: f == dataplane.IPv4, pol: policy{masqueradeAll: cfg.MasqueradeAll}}
		for _, c := range cfg.ClusterCIDRs {
			if dataplane.FamilyOf(c.Addr()) == f && !fam.pol.clusterCIDR.IsValid() {
				fam.pol.clusterCIDR = c.Masked()
			}
		}
		b.families = append(b.families, fam)
	}
	if err := b.prepareKernel(); err != nil {
		b.log.Warn("kernel setting for service rules could not be made", "err", err)
	}
	return b, nil
}

// Name is "iptables".
func (b *Backend) Name() string { return "iptables" }

// Rules counts the rules in the kernel.
func (b *Backend) Rules() int {
	n := 0
	for _, f := range b.families {
		n += f.w.Rules()
	}
	return n
}

// split plans services by family; services that cannot be planned are reported.
func (b *Backend) split(f *family, services []*dataplane.Service, errs dataplane.ServiceErrors) map[string]*xtables.Plan {
	plans := map[string]*xtables.Plan{}
	for _, s := range services {
		if s.Family != f.f {
			continue
		}
		p, err := plan(s, f.pol)
		if err != nil {
			errs[s.ID] = err
			continue
		}
		plans[s.ID.String()] = p
	}
	return plans
}

// Update implements dataplane.Backend: one transaction for each family concerned.
func (b *Backend) Update(ctx context.Context, services []*dataplane.Service) error {
	errs := dataplane.ServiceErrors{}
	for _, f := range b.families {
		set := b.split(f, services, errs)
		if len(set) == 0 {
			continue
		}
		if !f.active { // the first of its family
			if err := f.sync(ctx, set, services, errs); err != nil {
				return err
			}
			continue
		}
		if err := f.w.Apply(ctx, set, nil); err != nil {
			return err
		}
	}
	return errOrNil(errs)
}

// Delete implements dataplane.Backend.
func (b *Backend) Delete(ctx context.Context, ids []dataplane.ID) error {
	for _, f := range b.families {
		var gone []string
		for _, id := range ids {
			if id.Family == f.f {
				gone = append(gone, id.String())
			}
		}
		if len(gone) == 0 || !f.active {
			continue
		}
		if err := f.w.Apply(ctx, nil, gone); err != nil {
			return err
		}
	}
	return nil
}

// Sync implements dataplane.Backend.
func (b *Backend) Sync(ctx context.Context, all []*dataplane.Service) error {
	errs := dataplane.ServiceErrors{}
	for _, f := range b.families {
		plans := b.split(f, all, errs)
		if len(plans) == 0 && !f.active {
			if f.clean {
				continue
			}
			if err := f.w.Cleanup(ctx); err != nil { // an earlier process may have had services of this family
				return err
			}
			f.clean = true
			continue
		}
		if err := f.sync(ctx, plans, all, errs); err != nil {
			return err
		}
	}
	return errOrNil(errs)
}

func (f *family) sync(ctx context.Context, plans map[string]*xtables.Plan, services []*dataplane.Service, errs dataplane.ServiceErrors) error {
	err := f.w.Sync(ctx, plans)
	var refused xtables.OwnerErrors
	if err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("%s: %w", f.f, err)
	}
	for _, s := range services {
		if e := refused[s.ID.String()]; e != nil && s.Family == f.f {
			errs[s.ID] = e
		}
	}
	f.active, f.clean = true, false
	return nil
}

func errOrNil(errs dataplane.ServiceErrors) error {
	if len(errs) == 0 {
		return nil
	}
	return errs
}

// watchInterval is how long the loss of rules at other hands (a firewall tool that flushes) may go unnoticed.
const watchInterval = 15 * time.Second

// Maintain implements dataplane.Maintainer: it repairs what others have changed.
func (b *Backend) Maintain(ctx context.Context) (time.Duration, error) {
	for _, f := range b.families {
		drifted, err := f.w.Drifted()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f.f, err)
		}
		if !drifted {
			continue
		}
		if err := f.w.Repair(ctx); err != nil {
			return 0, fmt.Errorf("%s: %w", f.f, err)
		}
	}
	return watchInterval, nil
}

// Changed implements dataplane.Maintainer: nothing is delivered, Maintain looks from time to time.
func (b *Backend) Changed() <-chan struct{} { return nil }

// Cleanup implements dataplane.Backend.
func (b *Backend) Cleanup(ctx context.Context) error {
	var errs []error
	for _, f := range b.families {
		if err := f.w.Cleanup(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.f, err))
			continue
		}
		f.clean, f.active = true, f.f == dataplane.IPv4
	}
	return errors.Join(errs...)
}

// Close implements dataplane.Backend.
func (b *Backend) Close() error {
	var errs []error
	for _, f := range b.families {
		errs = append(errs, f.w.Close())
	}
	return errors.Join(errs...)
}
