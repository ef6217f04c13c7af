// Package modes names the dataplane backends, for the configuration.
package modes

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/iptables"
	"github.com/tripod-cluster/tripod/dataplane/ipvs"
)

// The modes.
const (
	IPTables = "iptables"
	IPVS     = "ipvs"
)

// Options are every backend's settings; each uses what concerns it.
type Options struct {
	Mode          string         // IPTables or IPVS
	Scheduler     string         // IPVS: rr (default), wrr, lc or sh
	ClusterCIDRs  []netip.Prefix // the pods' ranges, at most one a family
	MasqueradeBit *int           // bit of the packet mark that asks for masquerading, 0 to 31; default 14
	MasqueradeAll bool           // masquerade every connection to a cluster address
	// NodePortAddresses limits node ports to the node's addresses in these ranges; empty: all of them.
	NodePortAddresses []netip.Prefix
	Logger            *slog.Logger
}

// Open makes the backend that o.Mode names, in the network namespace of the calling thread.
func Open(o Options) (dataplane.Backend, error) {
	switch o.Mode {
	case IPTables:
		return iptables.New(iptables.Config{ClusterCIDRs: o.ClusterCIDRs, MasqueradeBit: o.MasqueradeBit,
			MasqueradeAll: o.MasqueradeAll, NodePortAddresses: o.NodePortAddresses, Logger: o.Logger})
	case IPVS:
		return ipvs.New(ipvs.Config{Scheduler: o.Scheduler, ClusterCIDRs: o.ClusterCIDRs, MasqueradeBit: o.MasqueradeBit,
			MasqueradeAll: o.MasqueradeAll, NodePortAddresses: o.NodePortAddresses, Logger: o.Logger})
	}
	return nil, fmt.Errorf("unknown service mode %q: choose %s or %s", o.Mode, IPTables, IPVS)
}

// Others opens the backends of the other modes, for dataplane.Config.Stale. One that this kernel cannot have has left
// nothing behind and is not opened.
func Others(o Options) ([]dataplane.Backend, error) {
	var out []dataplane.Backend
	var errs []error
	chosen := o.Mode
	for _, m := range []string{IPTables, IPVS} {
		if m == chosen || (m == IPVS && !ipvs.Present()) {
			continue
		}
		o.Mode = m
		b, err := Open(o)
		switch {
		case errors.Is(err, dataplane.ErrUnsupported):
		case err != nil:
			errs = append(errs, err)
		default:
			out = append(out, b)
		}
	}
	return out, errors.Join(errs...)
}
