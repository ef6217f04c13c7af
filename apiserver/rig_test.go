package apiserver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tripod-cluster/tripod/apiserver"
	"github.com/tripod-cluster/tripod/apiserver/internal/localleaser"
	"github.com/tripod-cluster/tripod/etcdapi"
	"github.com/tripod-cluster/tripod/pki"
	"github.com/tripod-cluster/tripod/store"
)

// cluster is the one API server of this test process, over a store of one peer.
type cluster struct {
	server   *apiserver.Server
	store    *store.Store
	dir      pki.Dir
	address  string // host:port
	auditLog string
	started  time.Duration // from New to ready
	stop     context.CancelFunc
	done     chan error
	joined   chan string // users that the join handler has seen
	outside  *outside
}

var (
	running     *cluster
	startErr    error
	startOnce   sync.Once
	processTemp string
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tripod-apiserver")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	processTemp = dir
	code := m.Run()
	if running != nil {
		running.stop()
		<-running.done
		running.outside.close()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// start gives the process's cluster, once it is ready.
func start(t *testing.T) *cluster {
	t.Helper()
	startOnce.Do(func() { running, startErr = newCluster(processTemp) })
	if startErr != nil {
		t.Fatal(startErr)
	}
	return running
}

// solitary is the etcd cluster of one that the etcd API tells of.
type solitary struct{}

func (solitary) ClusterID() uint64         { return 1 }
func (solitary) Self() uint64              { return 1 }
func (solitary) Leader() uint64            { return 1 }
func (solitary) Term() uint64              { return 1 }
func (solitary) Index() uint64             { return 1 }
func (solitary) AppliedIndex() uint64      { return 1 }
func (solitary) Members() []etcdapi.Member { return []etcdapi.Member{{ID: 1, Name: "test"}} }
func (solitary) Learner() bool             { return false }

func newCluster(temp string) (*cluster, error) {
	c := &cluster{
		dir:      pki.Dir(filepath.Join(temp, "pki")),
		auditLog: filepath.Join(temp, "audit.log"),
		joined:   make(chan string, 10),
		done:     make(chan error, 1),
	}
	bundle, err := pki.NewBundle(time.Now())
	if err != nil {
		return nil, err
	}
	if err := bundle.Write(c.dir); err != nil {
		return nil, err
	}
	local := net.IPv4(127, 0, 0, 1)
	host := pki.Host{Name: "test", ID: "test", Addresses: []net.IP{local}, ServiceIP: net.IPv4(10, 96, 0, 1)}
	if _, err := pki.EnsureHost(c.dir, host, time.Now()); err != nil {
		return nil, err
	}
	if c.outside, err = newOutside(filepath.Join(temp, "etc")); err != nil {
		return nil, err
	}
	evictionWait := 77 * time.Second
	c.store = store.New(store.Options{})
	proposer := store.NewLocal(c.store)
	leaser := localleaser.New(c.store, proposer)

	socket := filepath.Join(temp, "etcd.sock")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	etcd := etcdapi.New(etcdapi.Config{Store: c.store, Proposer: proposer, Leaser: leaser, Cluster: solitary{}})
	go etcd.NewGRPCServer().Serve(lis)

	port, err := freePort()
	if err != nil {
		return nil, err
	}
	c.address = net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	begin := time.Now()
	c.server, err = apiserver.New(apiserver.Config{
		Store: c.store, Proposer: proposer, Leaser: leaser,
		EtcdSocket: socket,
		// The kubernetes Service takes no loopback address.
		BindAddress: "127.0.0.1", Port: port, AdvertiseAddress: "192.0.2.1",
		PKI:        c.dir,
		RuntimeDir: filepath.Join(temp, "run"),
		AuditLog:   c.auditLog,
		Options:    c.outside.options(),

		PodEvictionWait: &evictionWait,
		Handlers: map[string]http.Handler{apiserver.PathJoin: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, _ := request.UserFrom(r.Context())
			c.joined <- user.GetName()
			fmt.Fprintln(w, "joined")
		})},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	go func() { c.done <- c.server.Run(ctx) }()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		err := c.server.Ready()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("not ready in three minutes: %w", err)
		}
		select {
		case err := <-c.done:
			return nil, fmt.Errorf("stopped before it was ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	c.started = time.Since(begin)
	return c, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// anonymous is the configuration of a client that knows the CA and no more.
func (c *cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host:            "https://" + c.address,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.dir.CACert(), ServerName: pki.ServerName},
		QPS:             -1,
	}
}

// as is the configuration of a client with a certificate.
func (c *cluster) as(t *testing.T, user string, groups ...string) *rest.Config {
	t.Helper()
	ca, err := c.dir.Authority()
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Leaf{CommonName: user, Organizations: groups, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.anonymous()
	cfg.CertData, cfg.KeyData = cert, key
	return cfg
}

func (c *cluster) admin(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	return client(t, c.as(t, "admin", "system:masters"))
}

// bearer is the configuration of a client with a token.
func (c *cluster) bearer(token string) *rest.Config {
	cfg := c.anonymous()
	cfg.BearerToken = token
	return cfg
}

func client(t *testing.T, cfg *rest.Config) *kubernetes.Clientset {
	t.Helper()
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// within is the time that a test gives to things that happen by themselves.
const within = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// get asks for a path with the TLS of cfg.
func get(t *testing.T, cfg *rest.Config, method, path string) int {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}}
	defer h.CloseIdleConnections()
	req, err := http.NewRequestWithContext(testContext(t), method, cfg.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.BearerToken != "" {
		req.Header.Set("Authorization", "Bearer "+cfg.BearerToken)
	}
	resp, err := h.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
