package etcdapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// serveHealth is etcd's /health: ?exclude=NOSPACE overlooks an alarm,
// ?serializable=true looks at this member alone.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	reason := s.unhealthy(r.Context(), q["exclude"], q.Get("serializable") == "true")
	healthy, count := "true", s.metrics.healthy
	if reason != "" {
		healthy, count = "false", s.metrics.unhealthy
	}
	count.Inc()
	b, err := json.Marshal(struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}{healthy, reason})
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case reason != "":
		http.Error(w, string(b), http.StatusServiceUnavailable)
	default:
		w.Write(b)
	}
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
	if !local && s.cfg.Cluster.Leader() == 0 {
		return "RAFT NO LEADER"
	}
	check := s.linearizableRead
	if local {
		check = s.serializableRead
	}
	if err := check(ctx); err != nil {
		return "RANGE ERROR:" + err.Error()
	}
	return ""
}

// check is one part of a probe.
type check struct {
	name string
	run  func(context.Context) error
}

// The probes of etcd: whether this process should be started again, and whether
// it should get requests.
func (s *Server) livez() []check {
	return []check{{"serializable_read", s.serializableRead}}
}

func (s *Server) readyz() []check {
	return []check{
		{"data_corruption", func(context.Context) error {
			for _, a := range s.cfg.Store.Alarms() {
				if a.Alarm == pb.AlarmType_CORRUPT {
					return fmt.Errorf("alarm activated: %s", a.Alarm)
				}
			}
			return nil
		}},
		{"serializable_read", s.serializableRead},
		{"linearizable_read", s.linearizableRead},
		{"non_learner", func(context.Context) error {
			if s.cfg.Cluster.Learner() {
				return fmt.Errorf("not supported for learner")
			}
			return nil
		}},
	}
}

func (s *Server) serializableRead(context.Context) error {
	_, err := s.cfg.Store.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Limit: 1, KeysOnly: true})
	return err
}

func (s *Server) linearizableRead(ctx context.Context) error {
	if s.cfg.Cluster.Leader() == 0 {
		return rpctypes.ErrNoLeader
	}
	if err := s.readIndex(ctx); err != nil {
		return err
	}
	return s.serializableRead(ctx)
}

// probe serves the checks under path: all of them, without those of ?exclude=,
// and each one under its name. What failed is always told; ?verbose tells all.
func (s *Server) probe(mux *http.ServeMux, kind string, checks []check) {
	serve := func(w http.ResponseWriter, r *http.Request, checks []check) {
		var told strings.Builder
		failed := false
		for _, c := range checks {
			err := c.run(r.Context())
			s.metrics.checked(kind, c.name, err == nil)
			if err != nil {
				failed = true
				fmt.Fprintf(&told, "[-]%s failed: %v\n", c.name, err)
			} else {
				fmt.Fprintf(&told, "[+]%s ok\n", c.name)
			}
		}
		if failed {
			http.Error(w, told.String(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.URL.Query().Has("verbose") {
			fmt.Fprint(w, told.String())
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /"+kind, func(w http.ResponseWriter, r *http.Request) {
		var asked []check
		for _, c := range checks {
			if !slices.Contains(r.URL.Query()["exclude"], c.name) {
				asked = append(asked, c)
			}
		}
		serve(w, r, asked)
	})
	for _, c := range checks {
		mux.HandleFunc("GET /"+kind+"/"+c.name, func(w http.ResponseWriter, r *http.Request) { serve(w, r, []check{c}) })
	}
}
