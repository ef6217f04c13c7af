package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
)

// target is what an autoscaler sizes, as it is.
type target struct {
	namespace string
	current   int
	selector  labels.Selector
	pods      []*corev1.Pod
}

// evaluation is what the metrics say.
type evaluation struct {
	replicas int
	metric   string // that decided
	statuses []autoscalingv2.MetricStatus
	// reason and err are of a metric that could not be read; replicas are valid
	// only when ok is true all the same.
	reason string
	err    error
	ok     bool
}

// evaluate asks all metrics, and takes the largest proposal. With one that cannot
// be read the others may only scale up.
func (c *controller) evaluate(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, t target, tol tolerances) evaluation {
	e := evaluation{replicas: -1}
	for i := range hpa.Spec.Metrics {
		spec := &hpa.Spec.Metrics[i]
		n, name, status, err := c.propose(ctx, spec, t, tol)
		if err != nil {
			if e.err == nil {
				e.reason, e.err = reasonOf(spec.Type), err
			}
			continue
		}
		e.statuses = append(e.statuses, status)
		if n > e.replicas {
			e.replicas, e.metric = n, name
		}
	}
	if len(hpa.Spec.Metrics) == 0 {
		e.reason, e.err = "InvalidMetricSourceType", errors.New("no metrics are given")
	}
	e.ok = e.replicas >= 0 && (e.err == nil || e.replicas >= t.current)
	return e
}

func reasonOf(t autoscalingv2.MetricSourceType) string {
	switch t {
	case autoscalingv2.ResourceMetricSourceType, autoscalingv2.ContainerResourceMetricSourceType,
		autoscalingv2.PodsMetricSourceType, autoscalingv2.ObjectMetricSourceType, autoscalingv2.ExternalMetricSourceType:
		return "FailedGet" + string(t) + "Metric"
	}
	return "InvalidMetricSourceType"
}

func milli(n int64) *resource.Quantity { return resource.NewMilliQuantity(n, resource.DecimalSI) }

// propose evaluates one metric.
func (c *controller) propose(ctx context.Context, spec *autoscalingv2.MetricSpec, t target, tol tolerances) (int, string, autoscalingv2.MetricStatus, error) {
	status := autoscalingv2.MetricStatus{Type: spec.Type}
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		s := spec.Resource
		n, value, name, err := c.proposeResource(ctx, s.Name, "", s.Target, t, tol)
		status.Resource = &autoscalingv2.ResourceMetricStatus{Name: s.Name, Current: value}
		return n, name, status, wrap(err, "resource %s", s.Name)
	case autoscalingv2.ContainerResourceMetricSourceType:
		s := spec.ContainerResource
		n, value, name, err := c.proposeResource(ctx, s.Name, s.Container, s.Target, t, tol)
		status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: s.Name, Container: s.Container, Current: value}
		return n, name, status, wrap(err, "resource %s of container %s", s.Name, s.Container)
	case autoscalingv2.PodsMetricSourceType:
		s := spec.Pods
		samples, err := c.metrics.Pods(ctx, t.namespace, t.selector, s.Metric)
		if err != nil {
			return 0, "", status, wrap(err, "metric %s of pods", s.Metric.Name)
		}
		n, used, _, serving, err := c.pool(t, samples, constant(s.Target.AverageValue)).propose(tol)
		status.Pods = &autoscalingv2.PodsMetricStatus{Metric: s.Metric, Current: average(used, serving)}
		return n, "pods metric " + s.Metric.Name, status, wrap(err, "metric %s of pods", s.Metric.Name)
	case autoscalingv2.ObjectMetricSourceType:
		s := spec.Object
		used, err := c.metrics.Object(ctx, t.namespace, s.DescribedObject, s.Metric)
		n, value, err := c.proposeValue(used, err, s.Target, t, tol)
		status.Object = &autoscalingv2.ObjectMetricStatus{Metric: s.Metric, DescribedObject: s.DescribedObject, Current: value}
		return n, fmt.Sprintf("%s metric %s", s.DescribedObject.Kind, s.Metric.Name), status, wrap(err, "metric %s of %s %s", s.Metric.Name, s.DescribedObject.Kind, s.DescribedObject.Name)
	case autoscalingv2.ExternalMetricSourceType:
		s := spec.External
		used, err := c.metrics.External(ctx, t.namespace, s.Metric)
		n, value, err := c.proposeValue(used, err, s.Target, t, tol)
		status.External = &autoscalingv2.ExternalMetricStatus{Metric: s.Metric, Current: value}
		return n, "external metric " + s.Metric.Name, status, wrap(err, "external metric %s", s.Metric.Name)
	}
	return 0, "", status, fmt.Errorf("unknown metric source type %q", spec.Type)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("failed to get %s: %w", fmt.Sprintf(format, args...), err)
}

func (c *controller) pool(t target, samples map[string]sample, goal func(*corev1.Pod) (int64, error)) pool {
	return pool{current: t.current, pods: t.pods, samples: samples, goal: goal, now: c.clock.Now()}
}

func constant(q *resource.Quantity) func(*corev1.Pod) (int64, error) {
	return func(*corev1.Pod) (int64, error) {
		if q == nil {
			return 0, errors.New("the target has no averageValue")
		}
		return q.MilliValue(), nil
	}
}

func average(used int64, n int) autoscalingv2.MetricValueStatus {
	return autoscalingv2.MetricValueStatus{AverageValue: milli(used / int64(max(n, 1)))}
}

func (c *controller) proposeResource(ctx context.Context, name corev1.ResourceName, container string, goal autoscalingv2.MetricTarget, t target, tol tolerances) (int, autoscalingv2.MetricValueStatus, string, error) {
	samples, err := c.metrics.Resource(ctx, t.namespace, t.selector, name, container)
	if err != nil {
		return 0, autoscalingv2.MetricValueStatus{}, "", err
	}
	what := fmt.Sprintf("%s resource", name)
	if container != "" {
		what = fmt.Sprintf("%s container resource of %s", name, container)
	}
	if goal.AverageUtilization == nil {
		p := c.pool(t, samples, constant(goal.AverageValue))
		p.cpu = name == corev1.ResourceCPU
		n, used, _, serving, err := p.propose(tol)
		return n, average(used, serving), what, err
	}
	percent := int64(*goal.AverageUtilization)
	share := func(percent int64) func(*corev1.Pod) (int64, error) {
		return func(pod *corev1.Pod) (int64, error) {
			r, err := request(pod, name, container)
			return r * percent / 100, err
		}
	}
	p := c.pool(t, samples, share(percent))
	p.cpu, p.fallback = name == corev1.ResourceCPU, share(max(percent, 100))
	n, used, sum, serving, err := p.propose(tol)
	value := average(used, serving)
	if sum > 0 {
		// The goals add up to that percentage of the requests.
		u := int32(min(used*percent/sum, math.MaxInt32))
		value.AverageUtilization = &u
	}
	return n, value, what + " utilization (percentage of request)", err
}

// proposeValue evaluates one value of the whole target.
func (c *controller) proposeValue(used int64, err error, goal autoscalingv2.MetricTarget, t target, tol tolerances) (int, autoscalingv2.MetricValueStatus, error) {
	if err != nil {
		return 0, autoscalingv2.MetricValueStatus{}, err
	}
	serving := 0
	for _, pod := range t.pods {
		if pod.Status.Phase == corev1.PodRunning && ready(pod) {
			serving++
		}
	}
	switch {
	case goal.Value != nil && goal.Value.MilliValue() > 0:
		if serving == 0 && t.current > 0 {
			return 0, autoscalingv2.MetricValueStatus{}, errors.New("no pod is ready")
		}
		return proposeWhole(t.current, serving, used, goal.Value.MilliValue(), false, tol), autoscalingv2.MetricValueStatus{Value: milli(used)}, nil
	case goal.AverageValue != nil && goal.AverageValue.MilliValue() > 0:
		n := proposeWhole(t.current, serving, used, goal.AverageValue.MilliValue(), true, tol)
		return n, average(used, t.current), nil
	}
	return 0, autoscalingv2.MetricValueStatus{}, errors.New("the target has neither value nor averageValue")
}
