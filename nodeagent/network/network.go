package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// resyncEvery repairs what nobody told us of.
	resyncEvery = time.Minute
	// settle gathers changes that come together into one turn.
	settle = 200 * time.Millisecond
)

// Mode says who makes the pod network.
type Mode string

// The modes.
const (
	ModeAuto Mode = "auto" // built in, unless the operator has a CNI configuration of their own
	ModeNone Mode = "none" // somebody else, always
)

// Config is what New needs. Zero values take the default named.
type Config struct {
	NodeName    string
	NodeIP      netip.Addr   // IPv4, on an interface of this host
	Mode        Mode         // default auto
	VXLAN       VXLANMode    // default auto
	VXLANPort   int          // UDP, default 8472; the same on every node
	MTU         int          // of pods, default from the interface that has NodeIP
	PodCIDR     netip.Prefix // default Node.spec.podCIDR
	ClusterCIDR netip.Prefix // default 10.244.0.0/16: traffic within it keeps the pods' addresses
	ServiceCIDR netip.Prefix // default 10.96.0.0/16

	CNIConfDir string   // default /etc/cni/net.d
	CNIBinDirs []string // default /usr/lib/cni, /opt/cni/bin

	Nodes  coreinformers.NodeInformer
	Logger *slog.Logger
}

// Network keeps the pod network of this host as the Nodes of the cluster need it.
type Network struct {
	cfg  Config
	log  *slog.Logger
	fw   *firewall
	kick chan struct{}

	mu    sync.Mutex
	ready error
	said  map[string]bool // problems already logged
}

// New checks the configuration. Nothing of the host is touched before Run.
func New(cfg Config) (*Network, error) {
	if cfg.NodeName == "" || cfg.Nodes == nil {
		return nil, errors.New("pod network: NodeName and Nodes are required")
	}
	if !cfg.NodeIP.Is4() {
		return nil, fmt.Errorf("pod network: node address %q is not IPv4: set nodeIP in the configuration", cfg.NodeIP)
	}
	cfg = cfg.withDefaults()
	switch cfg.Mode {
	case ModeAuto, ModeNone:
	default:
		return nil, fmt.Errorf("pod network: mode %q is not known: use auto or none", cfg.Mode)
	}
	switch cfg.VXLAN {
	case VXLANAuto, VXLANAlways, VXLANNever:
	default:
		return nil, fmt.Errorf("pod network: vxlan %q is not known: use auto, always or never", cfg.VXLAN)
	}
	n := &Network{cfg: cfg, log: cfg.Logger, fw: &firewall{}, kick: make(chan struct{}, 1), said: map[string]bool{},
		ready: errors.New("pod network: not set up yet")}
	if n.configured() {
		n.ready = nil // a restart must not make the node NotReady for a moment
	}
	return n, nil
}

// configured tells whether our CNI configuration is in place.
func (n *Network) configured() bool {
	_, err := os.Stat(filepath.Join(n.cfg.CNIConfDir, cniFile))
	return err == nil && n.cfg.Mode == ModeAuto
}

func (c Config) withDefaults() Config {
	if c.Mode == "" {
		c.Mode = ModeAuto
	}
	if c.VXLAN == "" {
		c.VXLAN = VXLANAuto
	}
	if c.VXLANPort == 0 {
		c.VXLANPort = 8472
	}
	if !c.ClusterCIDR.IsValid() {
		c.ClusterCIDR = netip.MustParsePrefix("10.244.0.0/16")
	}
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	}
	if c.CNIConfDir == "" {
		c.CNIConfDir = "/etc/cni/net.d"
	}
	if len(c.CNIBinDirs) == 0 {
		c.CNIBinDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Ready returns nil when pods can be given an address, and otherwise what is missing.
func (n *Network) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

// Run keeps the network until ctx ends and leaves it as it is then: pods live on.
func (n *Network) Run(ctx context.Context) error {
	reg, err := n.cfg.Nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { n.Kick() },
		DeleteFunc: func(any) { n.Kick() },
		UpdateFunc: func(old, new any) {
			a, b := toNode(old.(*v1.Node)), toNode(new.(*v1.Node))
			if a != b {
				n.Kick()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("pod network: watch nodes: %w", err)
	}
	defer func() { _ = n.cfg.Nodes.Informer().RemoveEventHandler(reg) }()
	// The service route and forwarding need no API: Services that noded knew
	// before a restart go on while the API is away.
	n.Kick()
	go n.listen(ctx)

	tick := time.NewTicker(resyncEvery)
	defer tick.Stop()
	backoff := time.Second
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.kick:
			select {
			case <-time.After(settle):
			case <-ctx.Done():
				return nil
			}
			select {
			case <-n.kick:
			default:
			}
		case <-tick.C:
		case <-retry:
		}
		retry = nil
		err := n.Sync(ctx)
		n.setReady(err)
		if err != nil {
			retry = time.After(backoff)
			backoff = min(2*backoff, 30*time.Second)
		} else {
			backoff = time.Second
		}
	}
}

func (n *Network) setReady(err error) {
	n.mu.Lock()
	was := n.ready
	n.ready = err
	n.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		n.log.Warn("pod network is not ready", "err", err)
	case err == nil && was != nil:
		n.log.Info("pod network is ready")
	}
}

// Kick asks for a turn soon.
func (n *Network) Kick() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// listen turns what netlink tells into turns: a route that somebody deletes is
// back in a moment.
func (n *Network) listen(ctx context.Context) {
	for ctx.Err() == nil {
		done := make(chan struct{})
		routes, links, addrs := make(chan netlink.RouteUpdate, 64), make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
		err := errors.Join(netlink.RouteSubscribe(routes, done), netlink.LinkSubscribe(links, done), netlink.AddrSubscribe(addrs, done))
		if err != nil {
			n.log.Warn("pod network: no word of changes from netlink, repairs come each minute", "err", err)
			close(done)
			return
		}
		open := true
		for open {
			select {
			case <-ctx.Done():
				open = false
			case u, ok := <-routes:
				open = ok
				if ok && u.Protocol == RouteProtocol && u.Type == unixRTMDelRoute {
					n.Kick()
				}
			case u, ok := <-links:
				open = ok
				if ok && n.owns(u.Attrs()) {
					n.Kick()
				}
			case u, ok := <-addrs:
				open = ok
				if a, valid := netip.AddrFromSlice(u.LinkAddress.IP); ok && valid && a.Unmap() == n.cfg.NodeIP {
					n.Kick()
				}
			}
		}
		close(done)
		for range routes { // the subscriptions end once their channels are drained
		}
		for range links {
		}
		for range addrs {
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// owns tells whether a link's change can concern the network: pods' own links come and go.
func (n *Network) owns(a *netlink.LinkAttrs) bool {
	return a != nil && a.MasterIndex == 0 && !strings.HasPrefix(a.Name, "veth") && a.Name != "lo"
}

// Sync makes one turn: observe, plan, apply. It returns what is missing for pods
// to be given addresses, or what could not be applied.
func (n *Network) Sync(ctx context.Context) error {
	up, err := findUplink(n.cfg.NodeIP)
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	errs := []error{forwarding(), serviceRoute(n.cfg.ServiceCIDR, n.cfg.NodeIP)}
	foreign, err := foreignConfig(n.cfg.CNIConfDir)
	errs = append(errs, err)
	if n.cfg.Mode == ModeNone || foreign != "" {
		errs = append(errs, n.standAside(foreign))
		return errors.Join(errs...)
	}
	if m := missingPlugins(n.cfg.CNIBinDirs); len(m) > 0 {
		errs = append(errs, fmt.Errorf("pod network: CNI plugins missing in %s: %s: install them with `apt install containernetworking-plugins`",
			strings.Join(n.cfg.CNIBinDirs, ", "), strings.Join(m, ", ")))
	}
	if !n.cfg.Nodes.Informer().HasSynced() {
		if n.configured() {
			return errors.Join(errs...) // what an earlier process set up holds until the API tells more
		}
		return errors.Join(append(errs, errors.New("pod network: waiting for the list of nodes from the API"))...)
	}
	self, others, err := n.nodes()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	p, problems := makePlan(self, up, others, n.cfg.VXLAN, n.cfg.MTU)
	n.say(problems)
	errs = append(errs, n.apply(p, up))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	conf, err := cniConfig(p.podCIDR, p.podMTU)
	if err != nil {
		return err
	}
	changed, err := writeCNI(n.cfg.CNIConfDir, conf)
	if changed {
		n.log.Info("pod network configured", "podCIDR", p.podCIDR.String(), "mtu", p.podMTU, "uplink", up.name, "routes", len(p.routes), "tunnels", len(p.tunnel))
	}
	return err
}

func (n *Network) apply(p plan, up uplink) error {
	return errors.Join(
		applyTunnel(p, up, n.cfg.VXLANPort),
		applyRoutes(p, up),
		n.fw.masquerade(p.podCIDR, n.cfg.ClusterCIDR, p.direct),
		n.fw.acceptForward(n.cfg.ClusterCIDR),
	)
}

// standAside removes what the built-in network made, but the service route, and
// tells whether somebody's configuration is there instead.
func (n *Network) standAside(foreign string) error {
	if err := os.Remove(filepath.Join(n.cfg.CNIConfDir, cniFile)); err == nil {
		n.log.Info("built-in pod network stands aside", "for", foreign)
	}
	err := errors.Join(applyRoutes(plan{}, uplink{}), applyTunnel(plan{}, uplink{}, 0), n.fw.remove())
	if foreign == "" {
		return errors.Join(err, fmt.Errorf("pod network: network.mode is none and %s holds no CNI configuration: install a network, or set network.mode to auto", n.cfg.CNIConfDir))
	}
	return err
}

// say logs each problem once, and again after it was gone.
func (n *Network) say(problems []error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := map[string]bool{}
	for _, p := range problems {
		now[p.Error()] = true
		if !n.said[p.Error()] {
			n.log.Warn("pod network: a node is left out", "err", p)
		}
	}
	n.said = now
}

// nodes reads this node and the others from the cache.
func (n *Network) nodes() (self node, others []node, err error) {
	list, err := n.cfg.Nodes.Lister().List(labels.Everything())
	if err != nil {
		return self, nil, fmt.Errorf("pod network: list nodes: %w", err)
	}
	for _, o := range list {
		if o.Name == n.cfg.NodeName {
			self = toNode(o)
		} else {
			others = append(others, toNode(o))
		}
	}
	if n.cfg.PodCIDR.IsValid() {
		self.podCIDR = n.cfg.PodCIDR
	}
	self.name, self.ip = n.cfg.NodeName, n.cfg.NodeIP
	if !self.podCIDR.IsValid() {
		return self, nil, fmt.Errorf("pod network: node %s has no pod CIDR yet: the cluster's leader assigns it after registration; see `controld status` on a peer if it does not", n.cfg.NodeName)
	}
	return self, others, nil
}

// toNode takes the IPv4 side of a Node.
func toNode(o *v1.Node) node {
	out := node{name: o.Name}
	for _, c := range append(slices.Clone(o.Spec.PodCIDRs), o.Spec.PodCIDR) {
		if p, err := netip.ParsePrefix(c); err == nil && p.Addr().Is4() {
			out.podCIDR = p
			break
		}
	}
	for _, a := range o.Status.Addresses {
		if a.Type != v1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Unmap().Is4() {
			out.ip = ip.Unmap()
			break
		}
	}
	return out
}
