package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/conntrack"
	"github.com/tripod-cluster/tripod/dataplane/kube"
	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/nodeagent"
	"github.com/tripod-cluster/tripod/nodeagent/bootstrap"
	"github.com/tripod-cluster/tripod/nodeagent/config"
	"github.com/tripod-cluster/tripod/nodeagent/network"
	"github.com/tripod-cluster/tripod/nodeagent/peers"
	"github.com/tripod-cluster/tripod/nodeagent/server"
)

func runCommand(load func() (config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Runs the node agent; systemd's noded.service does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			d, err := newDaemon(cfg, load)
			if err != nil {
				return err
			}
			return d.run(cmd.Context())
		},
	}
}

// daemon is the wiring of one noded process.
type daemon struct {
	load  func() (config.Config, error)
	log   *slog.Logger
	level *slog.LevelVar

	mu  sync.Mutex
	cfg config.Config

	name    string
	ip      netip.Addr
	set     *peers.Set
	client  *peers.Client
	kube    kubernetes.Interface
	certs   *bootstrap.Manager // client certificate
	serving *bootstrap.Manager
	nodes   informers.SharedInformerFactory
	api     informers.SharedInformerFactory // the addresses of the API
	net     *network.Network
	agent   *nodeagent.Agent
	server  *server.Server
	plane   *dataplane.Dataplane
}

func newDaemon(cfg config.Config, load func() (config.Config, error)) (*daemon, error) {
	d := &daemon{load: load, cfg: cfg, level: new(slog.LevelVar)}
	level, err := cfg.Level()
	if err != nil {
		return nil, err
	}
	d.level.Set(level)
	// The journal has the time of every line.
	d.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: d.level, ReplaceAttr: func(g []string, a slog.Attr) slog.Attr {
		if len(g) == 0 && a.Key == slog.TimeKey && os.Getenv("JOURNAL_STREAM") != "" {
			return slog.Attr{}
		}
		return a
	}}))
	slog.SetDefault(d.log)
	klog.SetSlogLogger(d.log.With("from", "client"))

	if err := d.identity(); err != nil {
		return nil, err
	}
	return d, d.parts()
}

// identity reads who this node is and makes its client of the cluster.
func (d *daemon) identity() error {
	paths := bootstrap.Paths{Root: d.cfg.StateDir}
	pair, err := bootstrap.LoadPair(paths.ClientCert())
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("this host has not joined a cluster: run `noded join TOKEN@HOST` (`controld token --role node` on a peer prints the argument)")
	}
	if err != nil {
		return err
	}
	if d.name, err = bootstrap.NodeName(pair); err != nil {
		return err
	}
	if d.cfg.NodeName != "" && d.cfg.NodeName != d.name {
		return fmt.Errorf("nodeName is %s in the configuration, but this host joined as %s: correct the configuration, or run `noded reset` and join again", d.cfg.NodeName, d.name)
	}
	roots, _, err := paths.LoadCA()
	if err != nil {
		return err
	}
	if d.set, err = peers.Open(paths.Peers()); err != nil {
		return err
	}
	if d.ip, err = nodeIP(d.cfg, d.set.Candidates()); err != nil {
		return err
	}
	d.certs, err = bootstrap.NewManager(bootstrap.ManagerConfig{Path: paths.ClientCert(), Node: d.name, Logger: d.log,
		Changed: func() { d.client.CloseConnections() }})
	if err != nil {
		return err
	}
	d.client = peers.NewClient(peers.ClientConfig{Set: d.set, Roots: roots, Certificate: d.certs.Certificate, Logger: d.log})
	if d.kube, err = kubernetes.NewForConfig(d.client.Config("noded/" + version.Get().GitVersion)); err != nil {
		return fmt.Errorf("make the API client: %w", err)
	}
	d.serving, err = bootstrap.NewManager(bootstrap.ManagerConfig{Path: paths.ServingCert(), Node: d.name, Logger: d.log,
		Names: func() ([]string, []netip.Addr) { return []string{d.name}, []netip.Addr{d.ip} },
		Ready: d.registered})
	return err
}

// parts makes everything that run then runs.
func (d *daemon) parts() error {
	cfg := d.cfg
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	d.nodes = informers.NewSharedInformerFactory(d.kube, 0)
	d.nodes.Core().V1().Nodes().Informer()
	if err := d.nodes.Core().V1().Nodes().Informer().SetTransform(slimNode); err != nil {
		return err
	}
	d.api = informers.NewSharedInformerFactoryWithOptions(d.kube, 0, informers.WithNamespace(metav1.NamespaceDefault),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=kubernetes" }))
	slices := d.api.Discovery().V1().EndpointSlices().Informer()
	if _, err := slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { d.learn(o) }, UpdateFunc: func(_, o any) { d.learn(o) }}); err != nil {
		return err
	}

	var podCIDR netip.Prefix
	if cfg.PodCIDR != "" {
		podCIDR = netip.MustParsePrefix(cfg.PodCIDR)
	}
	var err error
	d.net, err = network.New(network.Config{
		NodeName: d.name, NodeIP: d.ip, Mode: network.Mode(cfg.Network.Mode), VXLAN: network.VXLANMode(cfg.Network.VXLAN), VXLANPort: cfg.Network.VXLANPort,
		MTU: cfg.Network.MTU, PodCIDR: podCIDR, ClusterCIDR: netip.MustParsePrefix(cfg.ClusterCIDR), ServiceCIDR: netip.MustParsePrefix(cfg.ServiceCIDR),
		CNIConfDir: cfg.Network.CNIConfDir, CNIBinDirs: cfg.Network.CNIBinDirs, Nodes: d.nodes.Core().V1().Nodes(), Logger: d.log,
	})
	if err != nil {
		return err
	}
	capacity, _ := cfg.CapacityList() // checked when the file was read
	reserved, _ := cfg.ReservedList()
	taints, _ := cfg.TaintList()
	d.agent, err = nodeagent.New(nodeagent.Config{
		NodeName: d.name, Client: d.kube, NodeIPs: []netip.Addr{d.ip}, CRIEndpoint: cfg.CRIEndpoint, RootDir: cfg.StateDir, ImagesDir: cfg.ImagesDir,
		CgroupDriver: cfg.CgroupDriver, SandboxImage: cfg.SandboxImage, Capacity: capacity, SystemReserved: reserved, NodeLabels: cfg.Labels, NodeTaints: taints,
		ClusterDomain: cfg.ClusterDomain, ClusterDNS: cfg.ClusterDNS, DaemonPort: int32(cfg.Port), MaxPods: cfg.MaxPods,
		Network: d.net, Logger: d.log, Registerer: reg,
	})
	if err != nil {
		return err
	}
	roots, _, err := bootstrap.Paths{Root: cfg.StateDir}.LoadCA()
	if err != nil {
		return err
	}
	d.server, err = server.New(server.Config{
		NodeName: d.name, Address: apiAddress(cfg), Pods: d.agent.Pods(), Client: d.kube,
		Certificate: func() (*tls.Certificate, error) { return d.serving.Certificate() }, ClientCAs: roots,
		Healthy: d.agent.Healthy, Configz: func() any { return d.config() }, Gatherer: reg, Logger: d.log,
	})
	if err != nil {
		return err
	}
	backend, err := modes.Open(planeOptions(cfg, d.log))
	if err != nil {
		return fmt.Errorf("service rules: %w", err)
	}
	stale, err := modes.Others(planeOptions(cfg, d.log))
	if err != nil {
		d.log.Warn("rules of the other service mode, if there are any, cannot be looked for", "err", err)
	}
	flows, err := conntrack.New()
	if err != nil {
		return fmt.Errorf("service rules: %w", err)
	}
	d.plane, err = dataplane.New(dataplane.Config{Backend: backend, Stale: stale, Flows: flows, Logger: d.log, Registerer: reg})
	return err
}

func planeOptions(c config.Config, log *slog.Logger) modes.Options {
	o := modes.Options{Mode: c.Proxy.Mode, Scheduler: c.Proxy.Scheduler, MasqueradeAll: c.Proxy.MasqueradeAll, MasqueradeBit: &c.Proxy.MasqueradeBit,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix(c.ClusterCIDR)}, Logger: log}
	for _, p := range c.Proxy.NodePortAddresses {
		o.NodePortAddresses = append(o.NodePortAddresses, netip.MustParsePrefix(p))
	}
	return o
}

// slimNode drops what nobody here reads: every node caches all others.
func slimNode(o any) (any, error) {
	n, ok := o.(*v1.Node)
	if !ok {
		return o, nil
	}
	n.ManagedFields = nil
	n.Annotations = nil
	n.Status.Images = nil
	return n, nil
}

func (d *daemon) learn(o any) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	if err := d.set.Update(peers.FromSlice(s)); err != nil {
		d.log.Warn("list of API peers not kept", "err", err)
	}
}

func (d *daemon) config() config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg
}

// registered blocks until the Node has the address that the serving certificate
// is to name: the cluster compares them.
func (d *daemon) registered(ctx context.Context) error {
	inf := d.nodes.Core().V1().Nodes()
	if !cache.WaitForCacheSync(ctx.Done(), inf.Informer().HasSynced) {
		return ctx.Err()
	}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		if n, err := inf.Lister().Get(d.name); err == nil {
			for _, a := range n.Status.Addresses {
				if a.Address == d.ip.String() {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// zone is the node's topology zone, "" until it is known.
func (d *daemon) zone() string {
	n, err := d.nodes.Core().V1().Nodes().Lister().Get(d.name)
	if err != nil {
		return ""
	}
	return n.Labels[v1.LabelTopologyZone]
}

// run runs every part until ctx ends or one of them fails; containers live on.
func (d *daemon) run(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	api, err := d.server.Listen()
	if err != nil {
		return err
	}
	defer api.Close()
	health, err := net.Listen("tcp", healthAddress(d.cfg))
	if err != nil {
		return fmt.Errorf("health address: %w: another program has this port; find it with `ss -ltnp`, or set healthPort", err)
	}
	defer health.Close()
	status, err := listenStatus()
	if err != nil {
		return err
	}
	defer status.Close()

	d.log.Info("noded starts", "node", d.name, "ip", d.ip.String(), "version", version.Get().GitVersion, "peers", strings.Join(d.set.Candidates(), " "))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	part := func(name string, f func(context.Context) error) {
		wg.Go(func() {
			err := f(ctx)
			if ctx.Err() == nil {
				if err == nil {
					err = errors.New("ended")
				}
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	forever := func(f func(context.Context)) func(context.Context) error {
		return func(ctx context.Context) error { f(ctx); return ctx.Err() }
	}
	d.nodes.Start(ctx.Done())
	d.api.Start(ctx.Done())
	part("node agent", d.agent.Run)
	part("pod network", d.net.Run)
	part("node API", func(ctx context.Context) error { return d.server.Run(ctx, api) })
	part("health", func(ctx context.Context) error { return d.server.RunHealth(ctx, health) })
	part("status", func(ctx context.Context) error { return d.serveStatus(ctx, status) })
	part("service rules", d.plane.Run)
	part("services", func(ctx context.Context) error {
		return kube.Watch(ctx, kube.Config{Client: d.kube, NodeName: d.name, Zone: d.zone, Logger: d.log}, d.plane)
	})
	part("client certificate", forever(func(ctx context.Context) { d.certs.Run(ctx, d.kube) }))
	part("serving certificate", forever(func(ctx context.Context) { d.serving.Run(ctx, d.kube) }))
	part("API peers", forever(func(ctx context.Context) { d.client.Run(ctx, 15*time.Second) }))
	part("systemd", forever(d.notify))
	part("reload", forever(func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				d.reload(ctx)
			}
		}
	}))
	<-ctx.Done()
	notifyStopping()
	wg.Wait()
	d.nodes.Shutdown()
	d.api.Shutdown()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	d.log.Info("noded ends; pods live on")
	return nil
}
