package scheduling

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics under kube-scheduler's names.
type metrics struct {
	attempts *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	sli      prometheus.Histogram
	victims  prometheus.Histogram
	tries    prometheus.Counter
}

func newMetrics(r prometheus.Registerer, pending func() (active, backoff, unschedulable, gates int)) (*metrics, error) {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_schedule_attempts_total", Help: "Attempts to place a pod, by result."}, []string{"result"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "scheduler_scheduling_algorithm_duration_seconds", Help: "Time to choose a node or to refuse them all.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 2, 16)}, []string{"result"}),
		sli: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_sli_duration_seconds", Help: "Time from a pod's entry into the queue until it was bound.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}),
		victims: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_preemption_victims", Help: "Pods chosen to make room, by preemption.", Buckets: prometheus.ExponentialBuckets(1, 2, 7)}),
		tries:   prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_preemption_attempts_total", Help: "Pods for which room was sought by preemption."}),
	}
	if r == nil {
		return m, nil
	}
	gauge := func(state string, f func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "scheduler_pending_pods", Help: "Pending pods, by state.", ConstLabels: prometheus.Labels{"queue": state}},
			func() float64 { return float64(f()) })
	}
	err := errors.Join(r.Register(m.attempts), r.Register(m.latency), r.Register(m.sli), r.Register(m.victims), r.Register(m.tries),
		r.Register(gauge("active", func() int { a, _, _, _ := pending(); return a })),
		r.Register(gauge("backoff", func() int { _, b, _, _ := pending(); return b })),
		r.Register(gauge("unschedulable", func() int { _, _, u, _ := pending(); return u })),
		r.Register(gauge("gated", func() int { _, _, _, g := pending(); return g })))
	if err != nil {
		return nil, fmt.Errorf("register metrics of the scheduler: %w", err)
	}
	return m, nil
}

func (m *metrics) decided(d time.Duration, placed bool) {
	result := "unschedulable"
	if placed {
		result = "scheduled"
	} else {
		m.attempts.WithLabelValues(result).Inc()
	}
	m.latency.WithLabelValues(result).Observe(d.Seconds())
}

func (m *metrics) bound(d time.Duration) {
	m.attempts.WithLabelValues("scheduled").Inc()
	m.sli.Observe(d.Seconds())
}

func (m *metrics) failed() { m.attempts.WithLabelValues("error").Inc() }

func (m *metrics) preempted(victims int) { m.victims.Observe(float64(victims)) }
