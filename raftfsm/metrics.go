package raftfsm

import (
	"fmt"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

type metrics struct {
	propose       prometheus.Histogram
	readIndex     prometheus.Histogram
	batch         prometheus.Histogram
	snapshot      prometheus.Histogram
	retried       prometheus.Counter
	unknown       prometheus.Counter
	leaderChanges prometheus.Counter
	leasesExpired prometheus.Counter

	// Under etcd's names, for its dashboards.
	fsync     prometheus.Histogram
	apply     prometheus.Histogram
	roundTrip *prometheus.HistogramVec
	sent      *prometheus.CounterVec
	received  *prometheus.CounterVec
}

func newMetrics() *metrics {
	hist := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "tripod", Subsystem: "raft", Name: name, Help: help, Buckets: buckets})
	}
	count := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tripod", Subsystem: "raft", Name: name, Help: help})
	}
	fast := prometheus.ExponentialBuckets(0.0005, 2, 15)
	return &metrics{
		propose:       hist("propose_seconds", "Time from a proposal to its local apply.", fast),
		readIndex:     hist("read_index_seconds", "Time of a linearizable read's wait.", fast),
		batch:         hist("batch_bytes", "Bytes of records that were proposed together.", prometheus.ExponentialBuckets(128, 4, 8)),
		snapshot:      hist("snapshot_seconds", "Time to write a snapshot.", prometheus.ExponentialBuckets(0.01, 3, 9)),
		retried:       count("proposals_resent_total", "Proposals sent again because their fate was not known."),
		unknown:       count("proposals_unknown_total", "Proposals that ended with an unknown outcome."),
		leaderChanges: count("leader_changes_total", "Changes of the leader seen."),
		leasesExpired: count("leases_expired_total", "Leases that this peer, as leader, let expire."),

		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "etcd", Subsystem: "disk", Name: "wal_fsync_duration_seconds",
			Help: "Time to append to the raft log, its fsync included.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		apply: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "etcd", Subsystem: "disk", Name: "backend_commit_duration_seconds",
			Help: "Time to apply a batch of committed entries; the store has no backend on disk of its own.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		roundTrip: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "etcd", Subsystem: "network", Name: "peer_round_trip_time_seconds",
			Help: "Time of a heartbeat to a peer and back.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}, []string{"To"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "etcd", Subsystem: "network", Name: "peer_sent_bytes_total",
			Help: "Bytes sent to a peer."}, []string{"To"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "etcd", Subsystem: "network", Name: "peer_received_bytes_total",
			Help: "Bytes received from a peer."}, []string{"From"}),
	}
}

// valueOf reads a counter.
func valueOf(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0
	}
	return m.GetCounter().GetValue()
}

// register tells reg of everything; Close takes it back.
func (m *metrics) register(n *Node, reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "tripod", Subsystem: "raft", Name: name, Help: help}, f)
	}
	bit := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for _, c := range []prometheus.Collector{
		m.propose, m.readIndex, m.batch, m.snapshot, m.retried, m.unknown, m.leaderChanges, m.leasesExpired,
		m.fsync, m.apply, m.roundTrip, m.sent, m.received,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "etcd_server_proposals_pending", Help: "Proposals that wait for their apply."}, func() float64 { return float64(n.prop.pendingCount()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "etcd_server_proposals_failed_total", Help: "Proposals that ended with an unknown outcome."}, func() float64 { return valueOf(m.unknown) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "etcd_server_leader_changes_seen_total", Help: "Changes of the leader seen."}, func() float64 { return valueOf(m.leaderChanges) }),
		gauge("is_leader", "1 while this peer leads.", func() float64 { return bit(n.IsLeader()) }),
		gauge("has_leader", "1 while this peer knows a leader.", func() float64 { return bit(n.lead.current().id != 0) }),
		gauge("term", "The raft term.", func() float64 { return float64(n.raft.CurrentTerm()) }),
		gauge("commit_index", "The commit index that this peer knows.", func() float64 { return float64(n.raft.CommitIndex()) }),
		gauge("applied_index", "The last index applied to the store.", func() float64 { i, _ := n.fsm.applied(); return float64(i) }),
		gauge("last_index", "The last index of the local log.", func() float64 { return float64(n.raft.LastIndex()) }),
		gauge("last_contact_seconds", "Time since the leader was heard; 0 on the leader.", func() float64 { return n.sinceContact().Seconds() }),
		gauge("disk_free_bytes", "Free space of the raft directory.", func() float64 { return float64(n.disk.freeNow.Load()) }),
		gauge("disk_stalled", "1 while a call to the disk hangs.", func() float64 { return bit(n.disk.stalled.Load()) }),
		gauge("proposals_pending", "Proposals that wait for their apply.", func() float64 { return float64(n.prop.pendingCount()) }),
		gauge("voter", "1 if this peer votes.", func() float64 { s, ok := n.server(n.id); return bit(ok && s.Suffrage == raft.Voter) }),
	} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register the raft metrics: %w", err)
		}
		n.closers = append(n.closers, func() error { reg.Unregister(c); return nil })
	}
	return nil
}
