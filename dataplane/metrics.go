package dataplane

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	duration *prometheus.HistogramVec
	queued   prometheus.Gauge
	synced   prometheus.Gauge
	errors   prometheus.Counter
	flows    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, d *Dataplane) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tripod_dataplane_sync_duration_seconds", Help: "Time to write service rules, by kind (full, partial).",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}, []string{"kind"}),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tripod_dataplane_last_queued_timestamp_seconds", Help: "When the last change of a service arrived."}),
		synced: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tripod_dataplane_last_sync_timestamp_seconds", Help: "When service rules were last written successfully."}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tripod_dataplane_errors_total", Help: "Failed attempts to write service rules or clean up after them."}),
		flows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tripod_dataplane_flows_deleted_total", Help: "Stale UDP connection tracking entries deleted."}),
	}
	if reg == nil {
		return m, nil
	}
	rules := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tripod_dataplane_rules", Help: "Rules and virtual servers kept in the kernel."}, func() float64 {
		if c, ok := d.current().(RuleCounter); ok {
			return float64(c.Rules())
		}
		return 0
	})
	var errs []error
	for _, c := range []prometheus.Collector{m.duration, m.queued, m.synced, m.errors, m.flows, rules, stateCollector{d}} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) observe(kind string, start time.Time) {
	m.duration.WithLabelValues(kind).Observe(time.Since(start).Seconds())
}

// stateCollector counts services by state when it is asked, so that no path has to keep counters right.
type stateCollector struct{ d *Dataplane }

var servicesDesc = prometheus.NewDesc("tripod_dataplane_services", "Service ports, by state.", []string{"state"}, nil)

func (c stateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- servicesDesc }

func (c stateCollector) Collect(ch chan<- prometheus.Metric) {
	n := map[State]int{Pending: 0, Done: 0, Error: 0}
	c.d.mu.Lock()
	for _, r := range c.d.services {
		n[r.state()]++
	}
	c.d.mu.Unlock()
	for s, k := range n {
		ch <- prometheus.MustNewConstMetric(servicesDesc, prometheus.GaugeValue, float64(k), string(s))
	}
}
