package etcdapi

import (
	"encoding/json"
	"expvar"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.etcd.io/etcd/api/v3/version"
)

// Handler serves the HTTP paths of an etcd server that operators and load
// balancers ask: /health, /livez, /readyz, /version, /metrics and /debug/vars. None of them
// tells what is stored.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.serveHealth)
	s.probe(mux, "livez", s.livez())
	s.probe(mux, "readyz", s.readyz())
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		b, err := json.Marshal(version.Versions{Server: version.Version, Cluster: storageVersion, Storage: storageVersion})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(b)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.gather(), promhttp.HandlerOpts{}))
	mux.Handle("GET /debug/vars", expvar.Handler())
	return mux
}
