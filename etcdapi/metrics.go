package etcdapi

import (
	"net"
	"runtime"
	"strconv"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
)

// metrics are served under the names of etcd's, so that its dashboards and
// alerts find them.
type metrics struct {
	s        *Server
	registry *prometheus.Registry
	rpc      *grpcprom.ServerMetrics

	healthy, unhealthy prometheus.Counter
	check              *prometheus.GaugeVec
	checks             *prometheus.CounterVec
	received, sent     prometheus.Counter // bytes on the wire, with TLS
}

func newServerMetrics(s *Server) *metrics {
	count := func(subsystem, name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "etcd", Subsystem: subsystem, Name: name, Help: help})
	}
	m := &metrics{
		s: s, registry: prometheus.NewRegistry(), rpc: grpcprom.NewServerMetrics(),
		healthy:   count("server", "health_success", "Health checks that succeeded."),
		unhealthy: count("server", "health_failures", "Health checks that failed."),
		check:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "etcd", Subsystem: "server", Name: "healthcheck", Help: "Last result of each check of a probe: 1 or 0."}, []string{"type", "name"}),
		checks:    prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "etcd", Subsystem: "server", Name: "healthchecks_total", Help: "Checks of probes, by result."}, []string{"type", "name", "status"}),
		received:  count("network", "client_grpc_received_bytes_total", "Bytes received from clients, TLS included."),
		sent:      count("network", "client_grpc_sent_bytes_total", "Bytes sent to clients, TLS included."),
	}
	m.registry.MustRegister(m.rpc, m.healthy, m.unhealthy, m.check, m.checks, m.received, m.sent, (*stateMetrics)(s),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// gather adds what Config.Metrics has.
func (m *metrics) gather() prometheus.Gatherer {
	if m.s.cfg.Metrics == nil {
		return m.registry
	}
	return prometheus.Gatherers{m.registry, m.s.cfg.Metrics}
}

// checked notes the result of one check of a probe.
func (m *metrics) checked(kind, name string, ok bool) {
	status, value := "error", 0.0
	if ok {
		status, value = "success", 1
	}
	m.check.WithLabelValues(kind, name).Set(value)
	m.checks.WithLabelValues(kind, name, status).Inc()
}

// counted is a connection whose bytes are counted.
type counted struct {
	net.Conn
	m *metrics
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.m.received.Add(float64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.m.sent.Add(float64(n))
	return n, err
}

// stateMetrics reads the state of a Server when it is asked for.
type stateMetrics Server

// Describe sends nothing: labels are taken from the state.
func (*stateMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends the present state.
func (m *stateMetrics) Collect(ch chan<- prometheus.Metric) {
	c, st := m.cfg.Cluster, m.cfg.Store
	bit := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	send := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var names, values []string
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
	}
	const gauge = prometheus.GaugeValue
	puts, deletes := st.Changes()
	send(prometheus.CounterValue, "etcd_mvcc_put_total", "Keys put since this process began.", float64(puts))
	send(prometheus.CounterValue, "etcd_mvcc_delete_total", "Keys deleted since this process began.", float64(deletes))
	send(gauge, "etcd_server_has_leader", "Whether a leader is known: 1 or 0.", bit(c.Leader() != 0))
	send(gauge, "etcd_server_is_leader", "Whether this member is the leader: 1 or 0.", bit(c.Leader() == c.Self()))
	send(gauge, "etcd_server_is_learner", "Whether this member is a learner: 1 or 0.", bit(c.Learner()))
	send(gauge, "etcd_server_id", "The ID of this member, in hex.", 1, "server_id", strconv.FormatUint(c.Self(), 16))
	send(gauge, "etcd_server_version", "The version of etcd that is served.", 1, "server_version", version.Version)
	send(gauge, "etcd_server_go_version", "The version of Go.", 1, "server_go_version", runtime.Version())
	send(gauge, "etcd_cluster_version", "The version of etcd that the cluster serves.", 1, "cluster_version", version.Cluster(version.Version))
	send(gauge, "etcd_server_proposals_committed_total", "Index of the last committed raft entry.", float64(c.Index()))
	send(gauge, "etcd_server_proposals_applied_total", "Index of the last applied raft entry.", float64(c.AppliedIndex()))
	send(gauge, "etcd_server_quota_backend_bytes", "The size in bytes from which on writes are refused.", float64(m.cfg.QuotaBytes))
	size := float64((*Server)(m).dbSize())
	send(gauge, "etcd_mvcc_db_total_size_in_bytes", "Size of the state, history included.", size)
	send(gauge, "etcd_mvcc_db_total_size_in_use_in_bytes", "The same: none of it is free.", size)
	send(gauge, "etcd_debugging_mvcc_current_revision", "Revision of the store.", float64(st.Revision()))
	send(gauge, "etcd_debugging_mvcc_compact_revision", "Revision of the last compaction.", float64(st.CompactRevision()))
	count, err := st.Range(&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
	if err == nil {
		send(gauge, "etcd_debugging_mvcc_keys_total", "Number of keys.", float64(count.Count))
	}
	send(gauge, "etcd_debugging_mvcc_watcher_total", "Number of watches.", float64(st.Watchers()))
	send(gauge, "etcd_debugging_auth_revision", "Revision of users and roles.", float64(st.Auth().Revision()))
	send(gauge, "etcd_debugging_lease_active_total", "Number of leases.", float64(len(st.Leases())))
}
