package nodeagent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the agent, read when they are asked for.
type metrics struct {
	starts    *prometheus.CounterVec
	toRunning prometheus.Histogram
}

func newMetrics(a *Agent, r prometheus.Registerer) *metrics {
	m := &metrics{
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "noded_container_starts_total", Help: "Container starts, by result."}, []string{"result"}),
		toRunning: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "noded_pod_start_seconds", Help: "From a pod being seen to its first container running.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 10)}),
	}
	if r == nil {
		return m
	}
	r.MustRegister(m.starts, m.toRunning,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "noded_pods", Help: "Pods on this node, ended ones included."}, func() float64 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return float64(len(a.workers))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "noded_sync_age_seconds", Help: "Seconds since the sync loop last turned."}, func() float64 {
			last := a.lastSync.Load()
			if last == 0 {
				return 0
			}
			return time.Since(time.Unix(0, last)).Seconds()
		}))
	return m
}
