package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
)

// healthServers answer the health check node ports of Services with external traffic policy Local, so that a load
// balancer sends connections only to nodes that have an endpoint. Answer and headers are kube-proxy's (KEP-3458).
type healthServers struct {
	sink Sink
	log  *slog.Logger

	mu   sync.Mutex
	open map[string]*healthServer // by namespace/name
}

type healthServer struct {
	key   string
	port  uint16
	sink  Sink
	local int // guarded by healthServers.mu
	srv   *http.Server
	all   *healthServers
}

func newHealthServers(sink Sink, log *slog.Logger) *healthServers {
	return &healthServers{sink: sink, log: log, open: map[string]*healthServer{}}
}

// update opens, moves, refreshes or closes the server of one Service.
func (h *healthServers) update(key string, ports []*dataplane.Service) {
	var port uint16
	local := map[string]bool{}
	for _, s := range ports {
		if s.HealthCheckNodePort == 0 {
			continue
		}
		port = s.HealthCheckNodePort
		for _, e := range s.Select().Local {
			local[e.Addr.Addr().String()] = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	srv := h.open[key]
	if srv != nil && srv.port != port {
		_ = srv.srv.Close()
		delete(h.open, key)
		srv = nil
	}
	if port == 0 {
		return
	}
	if srv == nil {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			h.log.Warn("health check node port cannot be opened; load balancers take this node for unhealthy", "service", key, "port", port, "err", err)
			return
		}
		srv = &healthServer{key: key, port: port, sink: h.sink, all: h}
		srv.srv = &http.Server{Handler: srv, ReadHeaderTimeout: 10 * time.Second}
		h.open[key] = srv
		go func() { _ = srv.srv.Serve(l) }()
	}
	srv.local = len(local)
}

func (h *healthServers) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, s := range h.open {
		if s.srv.Shutdown(ctx) != nil {
			_ = s.srv.Close()
		}
	}
	h.open = map[string]*healthServer{}
}

func (s *healthServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.all.mu.Lock()
	n := s.local
	s.all.mu.Unlock()
	healthy := s.sink.Healthy() == nil
	namespace, name, _ := strings.Cut(s.key, "/")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(n))
	if n == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"service":             map[string]string{"namespace": namespace, "name": name},
		"localEndpoints":      n,
		"serviceProxyHealthy": healthy,
	})
}
