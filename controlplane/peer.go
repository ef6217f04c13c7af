package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/tripod-cluster/tripod/apiserver"
	"github.com/tripod-cluster/tripod/backup"
	"github.com/tripod-cluster/tripod/controllers"
	"github.com/tripod-cluster/tripod/controlplane/members"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/controlplane/vip"
	"github.com/tripod-cluster/tripod/etcdapi"
	"github.com/tripod-cluster/tripod/pki"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/scheduling/profile"
	"github.com/tripod-cluster/tripod/store"
)

// Peer is one running controld.
type Peer struct {
	cfg      peer.Config
	profiles *profile.Config // of the scheduler
	id       peer.Identity
	log      *slog.Logger
	plain    *slog.Logger // without the peer's name, for parts that add it themselves
	version  string
	pki      pki.Dir
	node     *raftfsm.Node
	writes   store.Proposer // node, under the quota
	store    *store.Store
	backups  *backup.Schedule
	fatal    func(error)

	metrics     prometheus.Gatherer // of the node
	termMetrics termMetrics

	mu      sync.Mutex
	waiting string
	api     *apiserver.Server
	kube    kubernetes.Interface
	term    *leadership
}

// Options are what Run needs beside the configuration.
type Options struct {
	Version string // of this program
	Log     *slog.Logger
	// RuntimeDir holds sockets and generated files; default /run/controld.
	RuntimeDir string
}

// Run runs the peer that this host is, until ctx ends. It returns
// peer.NoIdentity where the host is none.
func Run(ctx context.Context, cfg peer.Config, o Options) error {
	if err := controllers.CheckNames(slices.Collect(maps.Keys(cfg.Workers))); err != nil {
		return fmt.Errorf("configuration: workers: %w", err)
	}
	id, err := peer.ReadIdentity(cfg.StateDir)
	if err != nil {
		return err
	}
	profiles := profile.Default()
	if cfg.SchedulerConfig != "" {
		if profiles, err = profile.LoadFile(cfg.SchedulerConfig); err != nil {
			return err
		}
	}
	if o.RuntimeDir == "" {
		o.RuntimeDir = filepath.Dir(peer.AdminSocket)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &Peer{cfg: cfg, profiles: profiles, id: id, log: o.Log.With("peer", id.Name), plain: o.Log, version: o.Version, pki: pki.Dir(filepath.Join(cfg.StateDir, "pki")), waiting: "the store to open"}
	p.fatal = func(err error) {
		// What is stuck may not let an orderly end happen: leave at once, systemd starts anew.
		p.log.Error("this peer cannot go on and ends; systemd starts it again", "error", err)
		os.Exit(1)
	}
	// A mistake is told before this peer takes part in anything.
	if err := apiOptions(cfg).Validate(); err != nil {
		return fmt.Errorf("configuration of the API: %w", err)
	}
	if err := p.certificates(); err != nil {
		return err
	}
	if err := p.releaseVIP(); err != nil {
		p.log.Warn("virtual address of an earlier run not released", "error", err)
	}
	if err := p.open(); err != nil {
		return err
	}
	defer p.node.Close()

	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	// part runs f beside the others; when one fails, all end.
	part := func(name string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	admin, err := listenAdmin(filepath.Join(o.RuntimeDir, filepath.Base(peer.AdminSocket)))
	if err != nil {
		return err
	}
	part("admin", func(ctx context.Context) error { return p.serveAdmin(ctx, admin) })
	socket := filepath.Join(o.RuntimeDir, "etcd.sock")
	stopEtcd, err := p.serveEtcd(socket, part)
	if err != nil {
		return err
	}
	part("certificates", p.renew)
	part("watchdog", p.watchdog)
	part("snapshots", p.runBackups)
	notify(daemon.SdNotifyReady)
	part("raft", p.bootstrap)
	apiDone := make(chan struct{})
	part("api", func(ctx context.Context) error {
		defer close(apiDone)
		return p.runAPI(ctx, socket, o.RuntimeDir)
	})
	leadDone := make(chan struct{})
	part("leadership", func(ctx context.Context) error {
		defer close(leadDone)
		return p.followLeadership(ctx)
	})

	<-ctx.Done()
	notify(daemon.SdNotifyStopping)
	p.log.Info("stopping")
	<-leadDone // the virtual address and the tasks of the leader are let go first
	p.node.Close()
	<-apiDone
	stopEtcd()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

const notifySocketEnv = "NOTIFY_SOCKET"

// notifySocket is where systemd listens. It is kept, as the API server's start
// takes it out of the environment.
var notifySocket = os.Getenv(notifySocketEnv)

func notify(state string) {
	if notifySocket == "" {
		return // not under systemd: there is nobody to tell
	}
	if err := os.Setenv(notifySocketEnv, notifySocket); err != nil {
		slog.Error("systemd not told", "state", state, "error", err)
		return
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		slog.Error("systemd not told", "state", state, "error", err)
	}
}

func (p *Peer) setWaiting(what string) {
	p.mu.Lock()
	changed := p.waiting != what
	p.waiting = what
	p.mu.Unlock()
	if !changed {
		return
	}
	if what == "" {
		notify("STATUS=serving")
		p.log.Info("serving")
	} else {
		notify("STATUS=waiting for " + what)
		p.log.Info("waiting", "for", what)
	}
}

func (p *Peer) certificates() error {
	svc, err := p.id.Cluster.FirstServiceIP()
	if err != nil {
		return err
	}
	h := pki.Host{Name: p.id.Name, ID: p.id.ID, ServiceIP: svc, Addresses: []net.IP{net.ParseIP(p.id.Address)}}
	if v := net.ParseIP(p.id.Cluster.VIP); v != nil {
		h.Addresses = append(h.Addresses, v)
	}
	made, err := pki.EnsureHost(p.pki, h, time.Now())
	if err != nil {
		return fmt.Errorf("certificates of this peer: %w", err)
	}
	if len(made) > 0 {
		p.log.Info("certificates made", "names", made)
	}
	return nil
}

// renew makes certificates anew when they must; servers read them for each
// connection.
func (p *Peer) renew(ctx context.Context) error {
	t := time.NewTicker(time.Hour)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := p.certificates(); err != nil {
				p.log.Error("certificates not renewed; tried again in an hour", "error", err)
			}
		}
	}
}

func (p *Peer) releaseVIP() error {
	if p.id.Cluster.VIP == "" {
		return nil
	}
	h, err := p.vip()
	if err != nil {
		return err
	}
	return h.Release()
}

func (p *Peer) vip() (*vip.Holder, error) {
	a, err := parseAddr(p.id.Cluster.VIP)
	if err != nil {
		return nil, fmt.Errorf("vip: %w", err)
	}
	return vip.New(a, p.log), nil
}

// open opens the store and starts raft.
func (p *Peer) open() error {
	id, err := raftfsm.ParsePeerID(p.id.ID)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	reg := prometheus.NewRegistry()
	p.metrics = reg
	// The API server's /metrics shows them, and what runs in a term of leadership.
	legacyregistry.RawMustRegister(reg, &p.termMetrics)
	p.store = store.New(store.Options{})
	p.node, err = raftfsm.Open(raftfsm.Config{
		Dir: filepath.Join(p.cfg.StateDir, "raft"), ID: id, Name: p.id.Name, Store: p.store,
		ListenPeer: hostPort(p.cfg.ListenAddress, p.cfg.PeerPort), AdvertisePeer: hostPort(p.id.Address, p.cfg.PeerPort),
		TLS:        func() (*tls.Config, *tls.Config, error) { return mutual(p.pki.Peer(), p.pki.PeerCACert()) },
		ClientURLs: []string{"https://" + hostPort(p.id.Address, p.cfg.EtcdPort)},
		APIURLs:    []string{"https://" + hostPort(p.id.Address, p.cfg.APIPort)},
		Version:    p.version, Logger: p.plain, Registerer: reg, OnFatal: p.fatal,
		// A host that runs pods beside this peer may be short of processor time for
		// half a second: raftfsm's own 500 ms were seen to cost elections then.
		HeartbeatTimeout: 750 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	// One limit for both front doors: a client that fills the store is refused
	// before the store outgrows the memory of every peer.
	p.writes = store.WithQuota(p.node, p.store, storeQuota, uint64(id))
	if err := p.openBackups(reg); err != nil {
		p.node.Close()
		return err
	}
	return nil
}

// storeQuota is how large keys, values and their history may become, in bytes.
// They live in memory on every peer.
const storeQuota = 4 << 30

// mutual makes the two sides of mutual TLS from one certificate and authority.
func mutual(f pki.Files, ca string) (server, client *tls.Config, err error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("load certificate: %w", err)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, nil, fmt.Errorf("read authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%s holds no certificate", ca)
	}
	server = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	client = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: pool}
	return server, client, nil
}

// bootstrap makes the first peer of a new cluster its first member.
func (p *Peer) bootstrap(ctx context.Context) error {
	// A peer that was a member and has no state has lost it: it must not begin anew by itself.
	if !p.id.First || p.id.Phase != peer.PhaseInit {
		return nil
	}
	if err := p.node.Bootstrap(ctx); err != nil && !errors.Is(err, raftfsm.ErrBootstrapped) {
		return err
	}
	return nil
}

// serveEtcd serves etcd's API, over gRPC and HTTP, with client certificates on the port, and without
// on the socket, for this process.
func (p *Peer) serveEtcd(socket string, part func(string, func(context.Context) error)) (stop func(), err error) {
	cluster := members.New(p.node, p.store, members.Options{Rules: raftfsm.Rules{Strict: true}, AddRefused: errJoin})
	srv := etcdapi.New(etcdapi.Config{
		SnapshotOrigin: p.origin,
		Store:          p.store, Proposer: p.writes, Leaser: p.node, Cluster: cluster, Members: cluster, Logger: p.log, QuotaBytes: storeQuota, Metrics: p.metrics,
		// The operator's certificate on every peer is root's.
		ClientCertAuth: true,
	})
	port, err := net.Listen("tcp", hostPort(p.cfg.ListenAddress, p.cfg.EtcdPort))
	if err != nil {
		return nil, fmt.Errorf("open the etcd port: %w (another etcd on this host? set etcdPort in %s)", err, peer.DefaultConfigPath)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the etcd socket of an earlier run: %w", err)
	}
	local, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("open the etcd socket: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, fmt.Errorf("restrict the etcd socket: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c, _, err := mutual(p.pki.EtcdServer(), p.pki.EtcdCACert()) // read anew: it may have been renewed
		return c, err
	}}
	front, err := srv.NewFront(nil)
	if err != nil {
		return nil, fmt.Errorf("serve etcd's API: %w", err)
	}
	plain := srv.TrustedGRPCServer()
	part("etcd API", func(context.Context) error { return front.Serve(port, conf) })
	part("etcd socket", func(context.Context) error { return plain.Serve(local) })
	return func() { srv.Close(); front.Stop(); plain.Stop() }, nil
}

// runAPI serves Kubernetes' API as soon as the store answers.
func (p *Peer) runAPI(ctx context.Context, socket, runtimeDir string) error {
	if err := p.awaitStore(ctx); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	p.setWaiting("the Kubernetes API to start")
	conf := apiserver.Config{
		Store: p.store, Proposer: p.writes, Leaser: p.node, EtcdSocket: socket,
		BindAddress: p.cfg.ListenAddress, Port: p.cfg.APIPort, AdvertiseAddress: p.id.Address, PKI: p.pki,
		ServiceCIDR: p.id.Cluster.ServiceCIDR, NodePorts: p.id.Cluster.NodePortRange,
		RuntimeDir:      filepath.Join(runtimeDir, "apiserver"),
		PodEvictionWait: (*time.Duration)(&p.cfg.PodEvictionWait),
		Options:         apiOptions(p.cfg),
		Handlers:        map[string]http.Handler{peer.JoinPath: http.HandlerFunc(p.serveJoin)},
		ReadyChecks:     map[string]func() error{"raft-leader": p.hasLeader},
	}
	if p.cfg.AuditLog != "none" {
		conf.AuditLog = p.cfg.AuditLog
		if err := os.MkdirAll(filepath.Dir(conf.AuditLog), 0o700); err != nil {
			return fmt.Errorf("make the directory of the audit log: %w", err)
		}
	}
	api, err := apiserver.New(conf)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(api.LoopbackConfig())
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	p.mu.Lock()
	p.api, p.kube = api, kube
	p.mu.Unlock()
	go p.watchReady(ctx, api)
	return api.Run(ctx)
}

// awaitStore waits until this peer belongs to a cluster that has a leader.
func (p *Peer) awaitStore(ctx context.Context) error {
	for {
		rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.node.ReadIndex(rctx)
		cancel()
		if err == nil {
			return nil
		}
		switch leader, _ := p.node.Leader(); {
		case len(p.node.Members()) == 0:
			p.setWaiting("a peer of the cluster to add this one")
		case leader == 0:
			p.setWaiting("a leader: a majority of the peers must be up and reach each other on port " + fmt.Sprint(p.cfg.PeerPort))
		default:
			p.setWaiting("the store to catch up with the leader")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (p *Peer) hasLeader() error {
	if l, _ := p.node.Leader(); l == 0 {
		return errors.New("no leader is known: a majority of the peers must be up and reach each other")
	}
	return nil
}

// watchReady keeps what this peer says it waits for up to date.
func (p *Peer) watchReady(ctx context.Context, api *apiserver.Server) {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		err := errors.Join(p.hasLeader(), api.Ready())
		if err != nil {
			p.setWaiting(err.Error())
		} else {
			p.setWaiting("")
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// followLeadership leads while this peer is the raft leader and serves the API.
func (p *Peer) followLeadership(ctx context.Context) error {
	news := p.node.Leadership()
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case l, ok := <-news:
			if !ok {
				return nil
			}
			stop()
			stop = func() {}
			if !l.IsLeader {
				continue
			}
			lctx, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				p.lead(lctx, l.Term)
			}()
			stop = func() { cancel(); <-done }
		}
	}
}

// client is the API's, for tasks of this process. It may be used while the API is
// not ready: what it is asked then fails or waits.
func (p *Peer) client() (kubernetes.Interface, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kube == nil {
		return nil, fmt.Errorf("this peer does not serve yet: it waits for %s", p.waiting)
	}
	return p.kube, nil
}

// awaitAPI waits until the API of this peer runs.
func (p *Peer) awaitAPI(ctx context.Context) (*apiserver.Server, error) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		p.mu.Lock()
		api := p.api
		p.mu.Unlock()
		if api != nil && api.Ready() == nil {
			return api, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

func (p *Peer) setLeadership(t *leadership) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.term = t
}

// watchdog tells systemd that this process lives, as long as raft answers.
func (p *Peer) watchdog(ctx context.Context) error {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return nil //nolint:nilerr // not under systemd, or no watchdog set
	}
	t := time.NewTicker(every / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			answered := make(chan struct{})
			go func() { p.node.Members(); p.store.Revision(); close(answered) }()
			select {
			case <-answered:
				notify(daemon.SdNotifyWatchdog)
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// dropManagedFields keeps what nobody reads out of the caches.
func dropManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

func nodeReady(n *corev1.Node) (status, reason string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return string(c.Status), c.Reason
		}
	}
	return string(corev1.ConditionUnknown), "NeverReported"
}
