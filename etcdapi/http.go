package etcdapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
)

// Handler serves the HTTP paths of an etcd server that operators and load
// balancers ask: /health, /livez, /readyz, /version and a few lines of
// /metrics. None of them tells what is stored.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.serveHealth)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if reason := s.unhealthy(r.Context(), nil, false); reason != "" {
			http.Error(w, reason, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, struct {
			Server  string `json:"etcdserver"`
			Cluster string `json:"etcdcluster"`
			Storage string `json:"storage"`
		}{version.Version, storageVersion, storageVersion})
	})
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	return mux
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}

// serveHealth is etcd's /health: ?exclude=NOSPACE overlooks an alarm,
// ?serializable=true looks at this member alone.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	reason := s.unhealthy(r.Context(), q["exclude"], q.Get("serializable") == "true")
	code, healthy := http.StatusOK, "true"
	if reason != "" {
		code, healthy = http.StatusServiceUnavailable, "false"
	}
	writeJSON(w, code, struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}{healthy, reason})
}

// unhealthy returns why this member cannot serve; empty when it can.
func (s *Server) unhealthy(ctx context.Context, exclude []string, local bool) string {
	for _, a := range s.cfg.Store.Alarms() {
		name := a.Alarm.String()
		excluded := false
		for _, e := range exclude {
			excluded = excluded || strings.EqualFold(e, name)
		}
		if !excluded {
			return "ALARM " + name
		}
	}
	if local {
		return ""
	}
	if s.cfg.Cluster.Leader() == 0 {
		return "RAFT NO LEADER"
	}
	if err := s.readIndex(ctx); err != nil {
		return "RANGE ERROR:" + err.Error()
	}
	return ""
}

// serveMetrics writes gauges under etcd's names, in the text format of
// Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	c, st := s.cfg.Cluster, s.cfg.Store
	bit := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	count, _ := st.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, m := range []struct {
		name, help string
		value      int64
	}{
		{"etcd_server_has_leader", "Whether a leader is known: 1 or 0.", bit(c.Leader() != 0)},
		{"etcd_server_is_leader", "Whether this member is the leader: 1 or 0.", bit(c.Leader() == c.Self())},
		{"etcd_server_proposals_committed_total", "Index of the last committed raft entry.", int64(c.Index())},
		{"etcd_server_proposals_applied_total", "Index of the last applied raft entry.", int64(c.AppliedIndex())},
		{"etcd_mvcc_db_total_size_in_use_in_bytes", "Memory that keys and values take, history included.", st.Size()},
		{"etcd_debugging_mvcc_current_revision", "Revision of the store.", st.Revision()},
		{"etcd_debugging_mvcc_compact_revision", "Revision of the last compaction.", st.CompactRevision()},
		{"etcd_debugging_mvcc_keys_total", "Number of keys.", count.GetCount()},
		{"etcd_debugging_lease_active_total", "Number of leases.", int64(len(st.Leases()))},
	} {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n%s %d\n", m.name, m.help, m.name, m.name, m.value)
	}
}
