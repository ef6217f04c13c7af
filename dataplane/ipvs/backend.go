package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"github.com/moby/ipvs"
	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/xtables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Schedulers are the ones that may be configured.
var Schedulers = []string{"rr", "wrr", "lc", "sh"}

// Config is what New needs; the zero value works.
type Config struct {
	Scheduler     string         // one of Schedulers; default rr
	ClusterCIDRs  []netip.Prefix // the pods' ranges, at most one a family; their connections to cluster addresses are not masqueraded
	MasqueradeAll bool           // masquerade every connection to a cluster address
	MasqueradeBit *int           // bit of the packet mark that asks for masquerading, 0 to 31; default 14
	// NodePortAddresses limits node ports to the node's addresses in these ranges; empty: all but loopback.
	NodePortAddresses []netip.Prefix
	Logger            *slog.Logger // default: slog.Default()
}

// Backend implements dataplane.Backend and dataplane.Maintainer.
type Backend struct {
	cfg      Config
	mark     uint32
	log      *slog.Logger
	nl       *netlink.Handle
	vs       *ipvs.Handle
	dev      device
	node     nodeAddrs
	families []*family
	changed  chan struct{}
	stop     chan struct{}
	moved    atomic.Bool  // an address of the node came or went
	device   atomic.Int64 // the device's index: what happens to it is our own doing
	count    atomic.Int64
}

// family is one IP family's share. IPv6 is not touched before there is an IPv6 service.
type family struct {
	f        dataplane.Family
	w        *xtables.Writer
	set      *sets
	table    table
	cidr     netip.Prefix
	services map[dataplane.ID]*dataplane.Service
	have     map[dataplane.ID]*wanted
	active   bool
	clean    bool
}

// Present says whether this kernel has IPVS running; only then can there be anything to clean up.
func Present() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

// New opens the sockets, in the network namespace of the calling thread. The error wraps dataplane.ErrUnsupported
// where the kernel has no IPVS.
func New(cfg Config) (_ *Backend, err error) {
	if cfg.Scheduler == "" {
		cfg.Scheduler = "rr"
	}
	if !slices.Contains(Schedulers, cfg.Scheduler) {
		return nil, fmt.Errorf("unknown IPVS scheduler %q: choose one of %v", cfg.Scheduler, Schedulers)
	}
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
	if !Present() {
		_ = exec.Command("modprobe", "ip_vs").Run()
		if !Present() {
			return nil, fmt.Errorf("IPVS is %w: load module ip_vs, or choose mode iptables", dataplane.ErrUnsupported)
		}
	}
	b := &Backend{cfg: cfg, mark: 1 << bit, log: cfg.Logger, changed: make(chan struct{}, 1), stop: make(chan struct{})}
	defer func() {
		if err != nil {
			_ = b.Close()
		}
	}()
	if b.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if b.vs, err = ipvs.New(""); err != nil {
		return nil, fmt.Errorf("open IPVS: %w", err)
	}
	b.dev = device{h: b.nl, refs: map[netip.Addr]int{}}
	for _, f := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		fam := &family{f: f, active: f == dataplane.IPv4}
		for _, c := range cfg.ClusterCIDRs {
			if dataplane.FamilyOf(c.Addr()) == f && !fam.cidr.IsValid() {
				fam.cidr = c.Masked()
			}
		}
		if fam.set, err = newSets(f, b.nl); err != nil {
			return nil, err
		}
		fam.table = table{h: b.vs, sched: cfg.Scheduler, set: fam.set, now: time.Now}
		fam.reset()
		if fam.w, err = xtables.Open(xtables.Family(f), base(f, fam.cidr, cfg.MasqueradeAll, b.mark, nil)); err != nil {
			return nil, err
		}
		b.families = append(b.families, fam)
	}
	return b, b.watchAddrs()
}

func (f *family) reset() {
	f.services, f.have = map[dataplane.ID]*dataplane.Service{}, map[dataplane.ID]*wanted{}
	f.table.virtual = map[serverKey]*virtual{}
	f.set.refs = map[entry]int{}
}

// watchAddrs makes Changed deliver when an address of the node comes or goes, since node ports are on all of them.
func (b *Backend) watchAddrs() error {
	updates := make(chan netlink.AddrUpdate, 64)
	if err := netlink.AddrSubscribe(updates, b.stop); err != nil {
		return fmt.Errorf("watch the node's addresses: %w", err)
	}
	go func() {
		for u := range updates {
			if int64(u.LinkIndex) == b.device.Load() {
				continue
			}
			b.moved.Store(true)
			select {
			case b.changed <- struct{}{}:
			default:
			}
		}
	}()
	return nil
}

// Name is "ipvs".
func (b *Backend) Name() string { return "ipvs" }

// Rules counts virtual servers.
func (b *Backend) Rules() int { return int(b.count.Load()) }

// Changed implements dataplane.Maintainer.
func (b *Backend) Changed() <-chan struct{} { return b.changed }

func (b *Backend) counted() {
	n := 0
	for _, f := range b.families {
		n += len(f.table.virtual)
	}
	b.count.Store(int64(n))
}

// Update implements dataplane.Backend.
func (b *Backend) Update(ctx context.Context, services []*dataplane.Service) error {
	defer b.counted()
	for _, f := range b.families {
		mine := byFamily(services, f.f)
		if len(mine) == 0 {
			continue
		}
		if !f.active { // the first of its family
			if err := b.syncFamily(ctx, f, mine, dataplane.ServiceErrors{}); err != nil {
				return err
			}
			continue
		}
		for _, s := range mine {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := b.update(f, s); err != nil {
				return fmt.Errorf("service %s: %w", s.ID, err)
			}
		}
	}
	return nil
}

func byFamily(services []*dataplane.Service, f dataplane.Family) []*dataplane.Service {
	var out []*dataplane.Service
	for _, s := range services {
		if s.Family == f {
			out = append(out, s)
		}
	}
	return out
}

// update goes from what a service has to what it wants: what is new comes before what it had goes.
func (b *Backend) update(f *family, s *dataplane.Service) error {
	want, err := plan(s, b.node)
	if err != nil {
		return err
	}
	had := f.have[s.ID]
	if had == nil {
		had = &wanted{}
	}
	if err := b.dev.hold(want.addrs); err != nil {
		return err
	}
	if err := f.serve(s.ID, want); err != nil {
		return err
	}
	if err := f.set.hold(want.entries); err != nil {
		return err
	}
	if err := f.set.drop(had.entries); err != nil {
		return err
	}
	if err := f.leave(s.ID, had, want); err != nil {
		return err
	}
	f.services[s.ID], f.have[s.ID] = s, want
	return b.dev.drop(had.addrs)
}

// serve makes the virtual servers that a service wants.
func (f *family) serve(id dataplane.ID, want *wanted) error {
	for _, v := range want.servers {
		if err := f.table.ensure(id, v); err != nil {
			return err
		}
	}
	return nil
}

// leave gives up the virtual servers that a service had and wants no more.
func (f *family) leave(id dataplane.ID, had, want *wanted) error {
	keep := map[serverKey]bool{}
	for _, v := range want.servers {
		keep[v.key] = true
	}
	for _, k := range want.idle {
		keep[k] = true
		if err := f.table.idle(id, k); err != nil {
			return err
		}
	}
	for _, k := range append(keysOf(had.servers), had.idle...) {
		if !keep[k] {
			if err := f.table.remove(id, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func keysOf(servers []server) []serverKey {
	out := make([]serverKey, len(servers))
	for i, v := range servers {
		out[i] = v.key
	}
	return out
}

// Delete implements dataplane.Backend.
func (b *Backend) Delete(ctx context.Context, ids []dataplane.ID) error {
	defer b.counted()
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, f := range b.families {
			had := f.have[id]
			if had == nil {
				continue
			}
			err := f.set.drop(had.entries)
			if err == nil {
				err = f.leave(id, had, &wanted{})
			}
			if err == nil {
				err = b.dev.drop(had.addrs)
			}
			if err != nil {
				return fmt.Errorf("service %s: %w", id, err)
			}
			delete(f.have, id)
			delete(f.services, id)
		}
	}
	return nil
}

// Maintain implements dataplane.Maintainer: it follows the node's addresses and removes what has drained.
func (b *Backend) Maintain(ctx context.Context) (time.Duration, error) {
	defer b.counted()
	if b.moved.Swap(false) {
		if err := b.follow(ctx); err != nil {
			b.moved.Store(true)
			return 0, err
		}
	}
	// Draining, and rules that others may have changed, are looked at this often.
	const draining, watching = 10 * time.Second, 15 * time.Second
	next := watching
	for _, f := range b.families {
		drifted, err := f.w.Drifted()
		if err == nil && drifted {
			err = f.w.Repair(ctx)
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f.f, err)
		}
		more, err := f.table.drained()
		if err != nil {
			return 0, err
		}
		if more {
			next = draining
		}
	}
	return next, nil
}

// follow moves node ports, and addresses that are the node's own, after the node's addresses.
func (b *Backend) follow(ctx context.Context) error {
	node, err := ownAddrs(b.nl, b.cfg.NodePortAddresses)
	if err != nil {
		return err
	}
	if !maps.Equal(node.all, b.node.all) {
		b.node = node
		for _, f := range b.families {
			for _, s := range f.services {
				if err := ctx.Err(); err != nil {
					return err
				}
				if !s.External() {
					continue
				}
				if err := b.update(f, s); err != nil {
					return fmt.Errorf("service %s: %w", s.ID, err)
				}
			}
		}
	}
	return nil
}

// Close implements dataplane.Backend.
func (b *Backend) Close() error {
	select {
	case <-b.stop:
		return nil
	default:
		close(b.stop)
	}
	var errs []error
	for _, f := range b.families {
		if f.set != nil {
			f.set.close()
		}
		if f.w != nil {
			errs = append(errs, f.w.Close())
		}
	}
	if b.vs != nil {
		b.vs.Close()
	}
	if b.nl != nil {
		b.nl.Close()
	}
	return errors.Join(errs...)
}
