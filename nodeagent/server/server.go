package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	internalapi "k8s.io/cri-api/pkg/apis"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Pods is what the server must know of the node's pods; nodeagent's PodSource
// is one.
type Pods interface {
	PodByName(namespace, name string) (*v1.Pod, bool)
	AllPods() []*v1.Pod
	SandboxID(ctx context.Context, pod *v1.Pod) (string, error)
	Runtime() internalapi.RuntimeService
	Summary(ctx context.Context) (*statsapi.Summary, error)
}

// Config is what New needs.
type Config struct {
	NodeName string
	Address  string // default :10250
	Pods     Pods
	Client   kubernetes.Interface // asked for TokenReviews and SubjectAccessReviews

	// Certificate gives the serving certificate of a new connection.
	Certificate func() (*tls.Certificate, error)
	ClientCAs   *x509.CertPool // verifies client certificates

	Healthy  func() error        // nil when the sync loop lives
	Configz  func() any          // the effective configuration, without secrets
	Gatherer prometheus.Gatherer // what /metrics shows
	LogDir   string              // served read-only under /logs/; default /var/log

	Logger *slog.Logger
}

// Server serves the node's API.
type Server struct {
	cfg  Config
	log  *slog.Logger
	auth *authenticator
	az   *authorizer
	mux  *http.ServeMux
}

// New checks the configuration and makes a Server that is not serving yet.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("node API: no node name given")
	case cfg.Pods == nil || cfg.Client == nil || cfg.Certificate == nil || cfg.ClientCAs == nil:
		return nil, errors.New("node API: Pods, Client, Certificate and ClientCAs are required")
	}
	if cfg.Address == "" {
		cfg.Address = ":10250"
	}
	if cfg.Healthy == nil {
		cfg.Healthy = func() error { return nil }
	}
	if cfg.Configz == nil {
		cfg.Configz = func() any { return struct{}{} }
	}
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.DefaultGatherer
	}
	if cfg.LogDir == "" {
		cfg.LogDir = "/var/log"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg, log: cfg.Logger, auth: newAuthenticator(cfg.ClientCAs, cfg.Client), az: newAuthorizer(cfg.Client, cfg.NodeName)}
	s.routes()
	return s, nil
}

func (s *Server) routes() {
	m := http.NewServeMux()
	for _, p := range []string{"/exec", "/attach", "/portForward"} {
		h := map[string]http.HandlerFunc{"/exec": s.exec, "/attach": s.attach, "/portForward": s.portForward}[p]
		tail := "/{container}"
		if p == "/portForward" {
			tail = ""
		}
		for _, method := range []string{"GET ", "POST "} {
			m.HandleFunc(method+p+"/{namespace}/{pod}"+tail, h)
			m.HandleFunc(method+p+"/{namespace}/{pod}/{uid}"+tail, h)
		}
	}
	m.HandleFunc("POST /run/{namespace}/{pod}/{container}", s.run)
	m.HandleFunc("POST /run/{namespace}/{pod}/{uid}/{container}", s.run)
	m.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	m.HandleFunc("GET /pods", s.pods)
	m.HandleFunc("GET /pods/", s.pods)
	m.HandleFunc("GET /runningpods/", s.runningPods)
	m.HandleFunc("GET /stats/summary", s.summary)
	m.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	m.Handle("GET /metrics/resource", s.resourceMetrics())
	m.HandleFunc("GET /healthz", s.healthz)
	m.HandleFunc("GET /healthz/", s.healthz)
	m.HandleFunc("GET /configz", s.configz)
	m.Handle("GET /logs/", http.StripPrefix("/logs/", http.FileServer(http.Dir(s.cfg.LogDir))))
	s.mux = m
}

// Handler is the whole API with authentication and authorization.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, err := s.auth.authenticate(r)
		if err != nil {
			s.log.Debug("node API: caller refused", "path", r.URL.Path, "remote", r.RemoteAddr, "err", err)
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		ok, reason, err := s.az.allowed(r.Context(), user, r)
		switch {
		case err != nil:
			s.log.Error("node API: authorization could not be asked", "user", user.Name, "path", r.URL.Path, "err", err)
			http.Error(w, "authorization error: "+err.Error(), http.StatusInternalServerError)
			return
		case !ok:
			http.Error(w, reason, http.StatusForbidden)
			return
		}
		s.mux.ServeHTTP(w, r)
	})
}

// HealthHandler answers /healthz alone, to anybody who reaches it.
func (s *Server) HealthHandler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", s.healthz)
	return m
}

// Listen takes the port, so that a port in use is known before anything runs.
func (s *Server) Listen() (net.Listener, error) {
	l, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("node API: %w: another program has this port; find it with `ss -ltnp`", err)
	}
	return l, nil
}

// Run serves l until ctx ends, then closes every connection: streams end with
// the server, containers do not.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			ClientAuth:     tls.RequestClientCert, // verified for each request, so that a stranger gets a readable 401
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cfg.Certificate() },
		},
	}
	return serve(ctx, func() error { return srv.ServeTLS(l, "", "") }, srv)
}

// RunHealth serves /healthz without TLS on l until ctx ends.
func (s *Server) RunHealth(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: s.HealthHandler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	return serve(ctx, func() error { return srv.Serve(l) }, srv)
}

func serve(ctx context.Context, run func() error, srv *http.Server) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return fmt.Errorf("node API: %w", err)
	case <-ctx.Done():
		srv.Close()
		<-done
		return nil
	}
}
