package scheduling

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics under kube-scheduler's names, and fragmentation, which it lacks.
type metrics struct {
	attempts  *prometheus.CounterVec   // result, profile
	attempt   *prometheus.HistogramVec // result, profile: until it is bound or refused
	algorithm prometheus.Histogram
	sli       *prometheus.HistogramVec // attempts
	tries     prometheus.Histogram
	incoming  *prometheus.CounterVec // queue, event
	refusals  *prometheus.CounterVec // plugin, profile
	victims   prometheus.Histogram
	preempts  prometheus.Counter
}

// results of an attempt.
const (
	scheduled     = "scheduled"
	unschedulable = "unschedulable"
	failure       = "error"
)

func newMetrics(r prometheus.Registerer, s *Scheduler) (*metrics, error) {
	const seconds, count = 16, 18
	fine, coarse := prometheus.ExponentialBuckets(0.00005, 2, seconds), prometheus.ExponentialBuckets(0.001, 2, count)
	m := &metrics{
		attempts:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_schedule_attempts_total", Help: "Attempts to place a pod, by result and profile."}, []string{"result", "profile"}),
		attempt:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "scheduler_scheduling_attempt_duration_seconds", Help: "Time of an attempt until the pod is bound or refused.", Buckets: coarse}, []string{"result", "profile"}),
		algorithm: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_scheduling_algorithm_duration_seconds", Help: "Time to choose a node or to refuse them all.", Buckets: fine}),
		sli:       prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_sli_duration_seconds", Help: "Time from a pod's entry into the queue until it was bound, by its attempts.", Buckets: coarse}, []string{"attempts"}),
		tries:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_pod_scheduling_attempts", Help: "Attempts that a pod needed.", Buckets: prometheus.ExponentialBuckets(1, 2, 5)}),
		incoming:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_queue_incoming_pods_total", Help: "Pods added to a queue, by queue and what brought them there."}, []string{"queue", "event"}),
		refusals:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scheduler_plugin_refusals_total", Help: "Attempts in which a filter refused a node, by filter and profile."}, []string{"plugin", "profile"}),
		victims:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scheduler_preemption_victims", Help: "Pods chosen to make room, by preemption.", Buckets: prometheus.ExponentialBuckets(1, 2, 7)}),
		preempts:  prometheus.NewCounter(prometheus.CounterOpts{Name: "scheduler_preemption_attempts_total", Help: "Pods for which room was sought by preemption."}),
	}
	if r == nil {
		return m, nil
	}
	all := []prometheus.Collector{m.attempts, m.attempt, m.algorithm, m.sli, m.tries, m.incoming, m.refusals, m.victims, m.preempts}
	gauge := func(name, help, label, value string, f func() float64) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{label: value}}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return f()
		}))
	}
	queues := func(name string, states ...where) {
		gauge("scheduler_pending_pods", "Pending pods, by queue.", "queue", name, func() (n float64) {
			for _, w := range states {
				n += float64(s.queue.counts[w])
			}
			return n
		})
	}
	queues("active", ready, flying)
	queues("backoff", backing)
	queues("unschedulable", waiting)
	queues("gated", gated)
	gauge("scheduler_cache_size", "What the scheduler's view holds, by type.", "type", "nodes", func() float64 { return float64(len(s.cluster.Nodes())) })
	gauge("scheduler_cache_size", "What the scheduler's view holds, by type.", "type", "pods", func() float64 { return float64(s.cluster.Pods()) })
	gauge("scheduler_cache_size", "What the scheduler's view holds, by type.", "type", "assumed_pods", func() float64 { return float64(s.cluster.AssumedPods()) })
	for _, x := range []string{"cpu", "memory"} {
		gauge("scheduler_fragmentation_ratio", "Part of a resource of all nodes that is free but of no use, because its node has nothing left of the other resource or of room for pods.",
			"resource", x, func() float64 {
				f := s.cluster.Fragmentation()
				return map[string]float64{"cpu": f.CPU, "memory": f.Memory}[x]
			})
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register metrics of the scheduler: %w", err)
	}
	return m, nil
}

// decided notes the time of a decision.
func (m *metrics) decided(d time.Duration) { m.algorithm.Observe(d.Seconds()) }

// refused notes an attempt that found no node, and what refused.
func (m *metrics) refused(e *pending, by []string, now time.Time) {
	prof := e.pod.Spec.SchedulerName
	m.ended(e, unschedulable, now)
	for _, p := range by {
		m.refusals.WithLabelValues(p, prof).Inc()
	}
	m.incoming.WithLabelValues("unschedulable", "ScheduleAttemptFailure").Inc()
}

// bound notes a pod that has its node.
func (m *metrics) bound(e *pending, now time.Time) {
	m.ended(e, scheduled, now)
	m.sli.WithLabelValues(strconv.Itoa(min(e.attempts, 16))).Observe(now.Sub(e.since).Seconds())
	m.tries.Observe(float64(e.attempts))
}

// failed notes an attempt that went wrong after a node was chosen.
func (m *metrics) failed(e *pending, now time.Time) { m.ended(e, failure, now) }

func (m *metrics) ended(e *pending, result string, now time.Time) {
	prof := e.pod.Spec.SchedulerName
	m.attempts.WithLabelValues(result, prof).Inc()
	m.attempt.WithLabelValues(result, prof).Observe(now.Sub(e.tried).Seconds())
}

func (m *metrics) preempted(victims int) { m.victims.Observe(float64(victims)) }

// came notes pods that a change or a pod's creation made ready.
func (m *metrics) came(queue, event string) { m.incoming.WithLabelValues(queue, event).Inc() }
