package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/tripod-cluster/tripod/apiserver/storage"
)

// Server is the Kubernetes API of one peer.
type Server struct {
	settings *settings
	backend  *storage.Backend
	front    *aggregatorapiserver.APIAggregator
	ready    chan struct{} // closed when the start-up hooks have been started
	once     sync.Once
}

// New builds the API server and binds its port, but answers nothing before Run.
// The store must have a leader and EtcdSocket must be served.
func New(c Config) (*Server, error) {
	s, err := c.complete()
	if err != nil {
		return nil, err
	}
	logToSlog()
	backend, err := storage.New(storage.Options{Store: s.Store, Proposer: s.Proposer, Leaser: s.Leaser})
	if err != nil {
		return nil, err
	}
	front, err := buildChain(s, backend)
	if err != nil {
		return nil, fmt.Errorf("build the API server: %w", err)
	}
	return &Server{settings: s, backend: backend, front: front, ready: make(chan struct{})}, nil
}

// buildChain is upstream's start with our storage put under it.
func buildChain(s *settings, backend *storage.Backend) (*aggregatorapiserver.APIAggregator, error) {
	o, err := buildOptions(s)
	if err != nil {
		return nil, err
	}
	// Upstream's own loopback clients would log the deprecation of every API
	// that they read.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	if o.InformerName, err = cache.NewInformerName("kube-apiserver"); err != nil {
		return nil, fmt.Errorf("name the informers: %w", err)
	}
	completed, err := o.Complete(context.Background())
	if err != nil {
		return nil, fmt.Errorf("complete the options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("validate the options: %w", errors.Join(errs...))
	}
	config, err := app.NewConfig(completed)
	if err != nil {
		return nil, err
	}
	if err := customize(config, s, backend); err != nil {
		return nil, err
	}
	chain, err := config.Complete()
	if err != nil {
		return nil, err
	}
	front, err := app.CreateServerChain(chain)
	if err != nil {
		return nil, err
	}
	for path, h := range s.Handlers {
		front.GenericAPIServer.Handler.NonGoRestfulMux.Handle(path, h)
	}
	return front, nil
}

// customize replaces, in upstream's finished configuration, what is ours.
func customize(config *app.Config, s *settings, backend *storage.Backend) error {
	kube := config.KubeAPIs.ControlPlane.Generic
	crd := config.ApiExtensions
	front := config.Aggregator.GenericConfig

	kube.RESTOptionsGetter = backend.Wrap(kube.RESTOptionsGetter)
	crd.GenericConfig.RESTOptionsGetter = backend.Wrap(crd.GenericConfig.RESTOptionsGetter)
	crd.ExtraConfig.CRDRESTOptionsGetter = backend.Wrap(crd.ExtraConfig.CRDRESTOptionsGetter)
	front.RESTOptionsGetter = backend.Wrap(front.RESTOptionsGetter)
	metrics.SetStorageMonitorGetter(func() ([]metrics.Monitor, error) {
		return []metrics.Monitor{storeMonitor{s.Store}}, nil
	})

	v, err := newVersion(kube.EffectiveVersion, s.Version)
	if err != nil {
		return err
	}
	kube.EffectiveVersion, crd.GenericConfig.EffectiveVersion, front.EffectiveVersion = v, v, v

	client, err := kubernetes.NewForConfig(kube.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	config.KubeAPIs.Extra.EndpointReconcilerConfig.Interval = peerInterval
	config.KubeAPIs.Extra.EndpointReconcilerConfig.Reconciler = reconcilers.NewLeaseEndpointReconciler(
		reconcilers.NewEndpointsAdapter(client.CoreV1(), client.DiscoveryV1()), newPeerLeases(backend, s.Leaser))

	checks := []healthz.HealthChecker{named("store", backend.Healthy)}
	// A KMS plugin that is down makes Secrets unreadable: as upstream, this peer
	// is then not ready.
	if kms, ok := kube.ResourceTransformers.(healthz.HealthChecker); ok {
		checks = append(checks, kms)
	}
	for name, check := range s.ReadyChecks {
		checks = append(checks, named(name, check))
	}
	// Only the front's checks are asked. Its lists are copies of kube's that
	// may share memory. An absent leader must not restart the process, so livez
	// does not ask the store.
	front.ReadyzChecks = slices.Concat(front.ReadyzChecks, checks)
	front.HealthzChecks = slices.Concat(front.HealthzChecks, checks)
	return kube.AddPostStartHook(bootstrapHook, ensureBootstrap)
}

func named(name string, check func() error) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(*http.Request) error { return check() })
}

// Run serves until ctx ends, and then stops gracefully: within ten seconds,
// whatever a client does. It returns the error that made it stop, or nil. A
// Server runs once.
func (s *Server) Run(ctx context.Context) error {
	err := errors.New("an API server runs only once")
	s.once.Do(func() { err = s.run(ctx) })
	return err
}

func (s *Server) run(ctx context.Context) error {
	prepared, err := s.front.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare the API server: %w", err)
	}
	// The backend outlives the server's requests.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { s.backend.Run(background, max(s.settings.Compaction, 0)) })
	wg.Go(func() { followAuthentication(background, s.settings) })
	defer wg.Wait()
	defer stop()

	done := make(chan error, 1)
	go func() { done <- prepared.Run(ctx) }()
	close(s.ready)
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("API server on port %d: %w", s.settings.Port, err)
		}
		return nil
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(stopLimit):
		return fmt.Errorf("API server still had requests %s after it was told to stop; they are cut off", stopLimit)
	}
}

// Ready says whether this peer can serve: started, and with a store that has a
// leader. It is what readyz says, asked over the loopback connection, and
// takes at most two seconds.
func (s *Server) Ready() error {
	select {
	case <-s.ready:
	default:
		return errors.New("API server is not running yet")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c := s.LoopbackConfig()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return fmt.Errorf("client of readyz: %w", err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Host+"/readyz?verbose", nil)
	if err != nil {
		return fmt.Errorf("request of readyz: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("API server does not answer: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("read the answer of readyz: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("API server is not ready: %s", failedChecks(string(body)))
	}
	return nil
}

// failedChecks are the names of the checks that readyz marks with [-].
func failedChecks(body string) string {
	var names []string
	for line := range strings.Lines(body) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			names = append(names, name)
		}
	}
	if names == nil {
		return strings.TrimSpace(body)
	}
	return strings.Join(names, ", ")
}

// LoopbackConfig is a client configuration of the group system:masters for
// this process alone, with no rate limit of its own. The caller may change it.
func (s *Server) LoopbackConfig() *rest.Config {
	c := rest.CopyConfig(s.front.GenericAPIServer.LoopbackClientConfig)
	c.QPS, c.Burst = -1, 0
	return c
}

// Backend is the storage that the server's resources live in.
func (s *Server) Backend() *storage.Backend { return s.backend }
