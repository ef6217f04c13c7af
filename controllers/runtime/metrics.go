package runtime

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a group, all with the label "controller".
type metrics struct {
	duration *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	timeouts *prometheus.CounterVec
	panics   *prometheus.CounterVec
	restarts *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, g *Group) *metrics {
	label := []string{"controller"}
	counter := func(name, help string) *prometheus.CounterVec {
		return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tripod", Subsystem: "controller", Name: name, Help: help,
		}, label))
	}
	m := &metrics{
		duration: register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "tripod", Subsystem: "controller", Name: "reconcile_duration_seconds",
			Help:    "How long reconciles take.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, label)),
		errors:   counter("reconcile_errors_total", "Reconciles that ended with an error and are retried."),
		timeouts: counter("reconcile_timeouts_total", "Reconciles whose deadline passed."),
		panics:   counter("panics_total", "Panics caught."),
		restarts: counter("restarts_total", "Times a controller was built anew after a failure."),
	}
	Replace(r, &stateCollector{group: g})
	return m
}

// Replace registers c in place of what is registered under its names already: what
// is of a new term of leadership takes the place of the earlier one's. Nothing is
// done when r is nil.
func Replace(r prometheus.Registerer, c prometheus.Collector) {
	if r == nil {
		return
	}
	err := r.Register(c)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		r.Unregister(dup.ExistingCollector)
		_ = r.Register(c)
	}
}

// register registers c, or returns what is registered under its name already.
func register[C prometheus.Collector](r prometheus.Registerer, c C) C {
	if r == nil {
		return c
	}
	err := r.Register(c)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if existing, ok := dup.ExistingCollector.(C); ok {
			return existing
		}
	}
	return c
}

var (
	depthDesc   = prometheus.NewDesc("tripod_controller_queue_depth", "Keys that wait to be reconciled.", []string{"controller"}, nil)
	healthyDesc = prometheus.NewDesc("tripod_controller_healthy", "1 when the controller works, 0 when it is down, hung or waiting for caches.", []string{"controller"}, nil)
)

// stateCollector reads the state of the group when it is scraped.
type stateCollector struct{ group *Group }

func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- depthDesc
	ch <- healthyDesc
}

func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.group.Health() {
		healthy := 0.0
		if s.Healthy {
			healthy = 1
		}
		ch <- prometheus.MustNewConstMetric(depthDesc, prometheus.GaugeValue, float64(s.QueueDepth), s.Name)
		ch <- prometheus.MustNewConstMetric(healthyDesc, prometheus.GaugeValue, healthy, s.Name)
	}
}
