package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/tlsutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tripod-cluster/tripod/controlplane/members"
	"github.com/tripod-cluster/tripod/etcdapi"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
)

// defaultQuota is etcd's.
const defaultQuota = 2 << 30

// run serves until ctx ends.
func run(ctx context.Context, o *options, log *slog.Logger) error {
	if o.forceNew {
		return errors.New("--force-new-cluster: a cluster is begun anew from a stopped peer by `controld`, not by a flag of the server")
	}
	fatal := make(chan error, 1)
	s := store.New(store.Options{})
	reg := prometheus.NewRegistry()
	node, err := openNode(ctx, o, s, reg, log, func(err error) { fatal <- err })
	if err != nil {
		return err
	}
	defer node.Close()
	quota := o.quota
	if quota == 0 {
		quota = defaultQuota
	}
	progress, err := time.ParseDuration(o.progressInterval)
	if err != nil {
		return fmt.Errorf("--watch-progress-notify-interval: %w", err)
	}
	tokens, err := etcdapi.ParseTokens(o.authToken, time.Duration(o.authTokenTTL)*time.Second)
	if err != nil {
		return fmt.Errorf("--auth-token: %w", err)
	}
	cluster := members.New(node, s, members.Options{Rules: raftfsm.Rules{Strict: o.strictReconfig, MaxLearners: o.maxLearners}})
	api := etcdapi.New(etcdapi.Config{
		Store: s, Proposer: store.WithQuota(node, s, quota, uint64(node.ID())), Leaser: node, Cluster: cluster, Members: cluster, Logger: log,
		MaxRequestBytes: int(o.maxRequestBytes), MaxTxnOps: int(o.maxTxnOps), ProgressInterval: progress, QuotaBytes: quota,
		Metrics: reg, Tokens: tokens, BcryptCost: int(o.bcryptCost), ClientCertAuth: o.clientCertAuth,
	})
	pages := handler(o, api)
	front, err := api.NewFront(pages, grpc.MaxConcurrentStreams(uint32(o.maxStreams)))
	if err != nil {
		return err
	}
	defer front.Stop()
	defer api.Close()

	founded := make(chan error, 1)
	go func() { founded <- belong(ctx, o, node) }()
	select {
	case err := <-founded:
		if err != nil {
			return err
		}
	case err := <-fatal:
		return err
	case <-ctx.Done():
		return nil
	}
	if err := serveClients(o, front, log); err != nil {
		return err
	}
	log.Info("ready to serve client requests", "name", o.name, "id", node.ID().String())
	select {
	case <-ctx.Done():
		log.Info("stopping")
		node.Close() // hands the leadership over while clients can still be answered
		return nil
	case err := <-fatal:
		return err
	}
}

func openNode(ctx context.Context, o *options, s *store.Store, reg prometheus.Registerer, log *slog.Logger, fatal func(error)) (*raftfsm.Node, error) {
	dir := filepath.Join(o.dataDir, "member")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	listen, err := hostPort("--listen-peer-urls", o.listenPeer)
	if err != nil {
		return nil, err
	}
	if o.advertisePeer == "" {
		o.advertisePeer = o.listenPeer
	}
	advertise, err := hostPort("--initial-advertise-peer-urls", o.advertisePeer)
	if err != nil {
		return nil, err
	}
	if o.advertiseClient == "" {
		o.advertiseClient = o.listenClient
	}
	id, err := ownID(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	peers, err := peerTLS(id.String())
	if err != nil {
		return nil, err
	}
	return raftfsm.Open(raftfsm.Config{
		Dir: dir, ID: id, Name: o.name, Store: s, ListenPeer: listen, AdvertisePeer: advertise, PeerURLs: strings.Split(o.advertisePeer, ","), TLS: peers,
		ClientURLs: strings.Split(o.advertiseClient, ","), Version: version.Version, Logger: log, Registerer: reg, OnFatal: fatal,
		HeartbeatTimeout:        time.Duration(o.election) * time.Millisecond,
		SnapshotEntries:         o.snapshotCount,
		LeaseCheckpointInterval: checkpointInterval(o.featureGates),
	})
}

// checkpointInterval is etcd's where its feature gate is on; the other gates mean nothing here.
func checkpointInterval(gates string) time.Duration {
	for _, gate := range strings.Split(gates, ",") {
		if gate == "LeaseCheckpoint=true" {
			return 5 * time.Minute
		}
	}
	return 0
}

// hostPort returns the address in the first of the comma-separated URLs of a flag.
func hostPort(flag, urls string) (string, error) {
	first, _, _ := strings.Cut(urls, ",")
	u, err := url.Parse(first)
	// Peers speak TCP: a unix socket that is named like an address stands for that.
	schemes := []string{"http", "https", "unix", "unixs"}
	if err != nil || u.Host == "" || u.Port() == "" || !slices.Contains(schemes, u.Scheme) {
		return "", fmt.Errorf("%s: %q is not http(s)://host:port", flag, first)
	}
	return u.Host, nil
}

// handler serves what the API serves over HTTP, and the profiles where they are asked for.
func handler(o *options, api *etcdapi.Server) http.Handler {
	pages := http.NewServeMux()
	pages.Handle("/", api.Handler())
	if o.pprof {
		pages.HandleFunc("/debug/pprof/", pprof.Index)
		pages.HandleFunc("/debug/pprof/profile", pprof.Profile)
		pages.HandleFunc("/debug/pprof/trace", pprof.Trace)
		pages.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		pages.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	}
	return pages
}

// split cuts a flag's list.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// serveClients opens the client, HTTP and metrics URLs.
func serveClients(o *options, front *etcdapi.Front, log *slog.Logger) error {
	secure, err := clientTLS(o)
	if err != nil {
		return err
	}
	plain := map[string]bool{} // addresses that are served without TLS, and those with it
	tlsToo := map[string]bool{}
	for _, raw := range split(o.listenClient) {
		if u, err := url.Parse(raw); err == nil && strings.HasSuffix(u.Scheme, "s") {
			tlsToo[u.Host] = true
		} else if err == nil {
			plain[u.Host] = true
		}
	}
	done := map[string]bool{}
	serve := func(urls string, serve func(net.Listener, *tls.Config) error) error {
		for _, raw := range split(urls) {
			u, err := url.Parse(raw)
			if err != nil {
				return fmt.Errorf("client URL %q: %w", raw, err)
			}
			network, addr := "tcp", u.Host
			if strings.HasPrefix(u.Scheme, "unix") {
				network, addr = "unix", u.Host+u.Path
				if err := os.Remove(addr); err != nil && !errors.Is(err, os.ErrNotExist) {
					return fmt.Errorf("remove the socket of an earlier run: %w", err)
				}
			}
			if done[addr] {
				continue // with TLS and without, on one address
			}
			done[addr] = true
			l, err := net.Listen(network, addr)
			if err != nil {
				return fmt.Errorf("listen for clients: %w", err)
			}
			var conf *tls.Config
			if strings.HasSuffix(u.Scheme, "s") || tlsToo[addr] {
				if secure == nil {
					return fmt.Errorf("client URL %s needs --cert-file and --key-file, or --auto-tls", raw)
				}
				conf = secure
			}
			serve := serve
			if plain[addr] && tlsToo[addr] {
				serve = front.ServeEither
			}
			go func() {
				if err := serve(l, conf); err != nil {
					log.Error("a client listener ended", "url", raw, "error", err)
				}
			}()
		}
		return nil
	}
	if err := serve(o.listenClient, front.Serve); err != nil {
		return err
	}
	httpOnly := func(l net.Listener, conf *tls.Config) error {
		if conf != nil {
			l = tls.NewListener(l, conf)
		}
		return http.Serve(l, front.Handler())
	}
	if err := serve(o.listenHTTP, httpOnly); err != nil {
		return err
	}
	return serve(o.listenMetrics, httpOnly)
}

// notRevoked reads the revocation list in a file, anew for each connection as etcd does.
func notRevoked(path string, certs []*x509.Certificate) error {
	der, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the revocation list: %w", err)
	}
	if block, _ := pem.Decode(der); block != nil {
		der = block.Bytes
	}
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return fmt.Errorf("read the revocation list %s: %w", path, err)
	}
	for _, c := range certs {
		for _, r := range list.RevokedCertificateEntries {
			if r.SerialNumber.Cmp(c.SerialNumber) == 0 {
				return fmt.Errorf("transport: certificate serial %x revoked", c.SerialNumber)
			}
		}
	}
	return nil
}

// clientTLS is nil where no certificate was given.
func clientTLS(o *options) (*tls.Config, error) {
	info := transport.TLSInfo{
		CertFile: o.certFile, KeyFile: o.keyFile, TrustedCAFile: o.caFile, ClientCertAuth: o.clientCertAuth, CRLFile: o.crl, Logger: zap.NewNop(),
	}
	if o.autoTLS && info.Empty() {
		var hosts []string
		for _, raw := range strings.Split(o.listenClient, ",") {
			if u, err := url.Parse(raw); err == nil {
				hosts = append(hosts, u.Host)
			}
		}
		self, err := transport.SelfCert(zap.NewNop(), filepath.Join(o.dataDir, "fixtures", "client"), hosts, 1)
		if err != nil {
			return nil, fmt.Errorf("make a certificate for clients: %w", err)
		}
		info = self
	}
	if info.Empty() {
		return nil, nil
	}
	if o.cipherSuites != "" {
		for _, name := range strings.Split(o.cipherSuites, ",") {
			suite, ok := tlsutil.GetCipherSuite(name)
			if !ok {
				return nil, fmt.Errorf("--cipher-suites: %q is not known", name)
			}
			info.CipherSuites = append(info.CipherSuites, suite)
		}
	}
	var err error
	if info.MinVersion, err = tlsutil.GetTLSVersion(o.tlsMin); err != nil {
		return nil, fmt.Errorf("--tls-min-version: %w", err)
	}
	if info.MaxVersion, err = tlsutil.GetTLSVersion(o.tlsMax); err != nil {
		return nil, fmt.Errorf("--tls-max-version: %w", err)
	}
	conf, err := info.ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("TLS for clients: %w", err)
	}
	if o.crl != "" {
		conf.VerifyConnection = func(s tls.ConnectionState) error { return notRevoked(o.crl, s.PeerCertificates) }
	}
	return conf, nil
}
