package server

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// The names of /metrics/resource are a stable interface (metrics-server scrapes
// it): https://kubernetes.io/docs/reference/instrumentation/node-metrics
var (
	nodeCPU      = prometheus.NewDesc("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", nil, nil)
	nodeMemory   = prometheus.NewDesc("node_memory_working_set_bytes", "Current working set of the node in bytes", nil, nil)
	ctrCPU       = prometheus.NewDesc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", []string{"container", "pod", "namespace"}, nil)
	ctrMemory    = prometheus.NewDesc("container_memory_working_set_bytes", "Current working set of the container in bytes", []string{"container", "pod", "namespace"}, nil)
	ctrStart     = prometheus.NewDesc("container_start_time_seconds", "Start time of the container since unix epoch in seconds", []string{"container", "pod", "namespace"}, nil)
	podCPU       = prometheus.NewDesc("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", []string{"pod", "namespace"}, nil)
	podMemory    = prometheus.NewDesc("pod_memory_working_set_bytes", "Current working set of the pod in bytes", []string{"pod", "namespace"}, nil)
	scrapeFailed = prometheus.NewDesc("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", nil, nil)
)

type resourceCollector struct{ s *Server }

func (s *Server) resourceMetrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(resourceCollector{s})
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

func (c resourceCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeCPU, nodeMemory, ctrCPU, ctrMemory, ctrStart, podCPU, podMemory, scrapeFailed} {
		ch <- d
	}
}

func (c resourceCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	sum, err := c.s.cfg.Pods.Summary(ctx)
	if err != nil {
		c.s.log.Warn("node API: resource metrics", "err", err)
		ch <- prometheus.MustNewConstMetric(scrapeFailed, prometheus.GaugeValue, 1)
		return
	}
	ch <- prometheus.MustNewConstMetric(scrapeFailed, prometheus.GaugeValue, 0)
	cpu := func(d *prometheus.Desc, s *statsapi.CPUStats, labels ...string) {
		if s != nil && s.UsageCoreNanoSeconds != nil {
			emit(ch, d, prometheus.CounterValue, s.Time, float64(*s.UsageCoreNanoSeconds)/1e9, labels...)
		}
	}
	mem := func(d *prometheus.Desc, s *statsapi.MemoryStats, labels ...string) {
		if s != nil && s.WorkingSetBytes != nil {
			emit(ch, d, prometheus.GaugeValue, s.Time, float64(*s.WorkingSetBytes), labels...)
		}
	}
	cpu(nodeCPU, sum.Node.CPU)
	mem(nodeMemory, sum.Node.Memory)
	for _, p := range sum.Pods {
		for _, ct := range p.Containers {
			cpu(ctrCPU, ct.CPU, ct.Name, p.PodRef.Name, p.PodRef.Namespace)
			mem(ctrMemory, ct.Memory, ct.Name, p.PodRef.Name, p.PodRef.Namespace)
			if !ct.StartTime.IsZero() {
				emit(ch, ctrStart, prometheus.GaugeValue, metav1.Time{}, float64(ct.StartTime.UnixNano())/1e9, ct.Name, p.PodRef.Name, p.PodRef.Namespace)
			}
		}
		cpu(podCPU, p.CPU, p.PodRef.Name, p.PodRef.Namespace)
		mem(podMemory, p.Memory, p.PodRef.Name, p.PodRef.Namespace)
	}
}

// emit sends a sample with the time it was taken at: rates are computed from it.
func emit(ch chan<- prometheus.Metric, d *prometheus.Desc, t prometheus.ValueType, at metav1.Time, v float64, labels ...string) {
	m := prometheus.MustNewConstMetric(d, t, v, labels...)
	if !at.IsZero() {
		m = prometheus.NewMetricWithTimestamp(at.Time, m)
	}
	ch <- m
}
