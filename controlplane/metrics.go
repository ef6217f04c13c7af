package controlplane

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// termMetrics shows the metrics of what runs in the present term of leadership.
// Each term has a registry of its own, as the same names are registered anew.
type termMetrics struct {
	current atomic.Pointer[prometheus.Registry]
}

// Describe sends nothing: what is collected changes with the term.
func (*termMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect delegates to the registry of the present term.
func (t *termMetrics) Collect(ch chan<- prometheus.Metric) {
	if r := t.current.Load(); r != nil {
		r.Collect(ch)
	}
}
