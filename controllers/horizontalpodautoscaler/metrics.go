package horizontalpodautoscaler

import (
	"context"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"k8s.io/metrics/pkg/client/external_metrics"
)

// Metrics reads metrics; all values are in thousandths of their unit.
type Metrics interface {
	// Resource returns the use of a resource by pod, or by one container of each.
	Resource(ctx context.Context, namespace string, pods labels.Selector, resource corev1.ResourceName, container string) (map[string]sample, error)
	// Pods returns a custom metric by pod.
	Pods(ctx context.Context, namespace string, pods labels.Selector, metric autoscalingv2.MetricIdentifier) (map[string]sample, error)
	// Object returns a custom metric of one object.
	Object(ctx context.Context, namespace string, of autoscalingv2.CrossVersionObjectReference, metric autoscalingv2.MetricIdentifier) (int64, error)
	// External returns the sum of a metric from outside of the cluster.
	External(ctx context.Context, namespace string, metric autoscalingv2.MetricIdentifier) (int64, error)
}

// apis reads metrics through the API server's aggregated APIs.
type apis struct {
	resource  metricsclient.Interface
	custom    custom_metrics.CustomMetricsClient
	available custom_metrics.AvailableAPIsGetter
	external  external_metrics.ExternalMetricsClient
	mapper    meta.RESTMapper
}

// NewMetrics makes a client of the metrics APIs. Which versions of the custom
// metrics there are is read when it is first asked for.
func NewMetrics(config *rest.Config, d discovery.DiscoveryInterface, mapper meta.RESTMapper) (Metrics, error) {
	resource, err := metricsclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of resource metrics: %w", err)
	}
	external, err := external_metrics.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of external metrics: %w", err)
	}
	available := custom_metrics.NewAvailableAPIsGetter(d)
	return &apis{
		resource: resource, external: external, available: available, mapper: mapper,
		custom: custom_metrics.NewForConfig(config, mapper, available),
	}, nil
}

func (a *apis) Resource(ctx context.Context, namespace string, pods labels.Selector, resource corev1.ResourceName, container string) (map[string]sample, error) {
	l, err := a.resource.MetricsV1beta1().PodMetricses(namespace).List(ctx, metav1.ListOptions{LabelSelector: pods.String()})
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	out := map[string]sample{}
	for _, m := range l.Items {
		s := sample{at: m.Timestamp.Time, window: m.Window.Duration}
		found, complete := false, true
		for _, c := range m.Containers {
			if container != "" && c.Name != container {
				continue
			}
			q, ok := c.Usage[resource]
			found, complete = true, complete && ok
			s.value += q.MilliValue()
		}
		if found && complete {
			out[m.Name] = s
		}
	}
	return out, nil
}

func (a *apis) Pods(_ context.Context, namespace string, pods labels.Selector, metric autoscalingv2.MetricIdentifier) (map[string]sample, error) {
	selector, err := metav1.LabelSelectorAsSelector(orAll(metric.Selector))
	if err != nil {
		return nil, err
	}
	l, err := a.custom.NamespacedMetrics(namespace).GetForObjects(schema.GroupKind{Kind: "Pod"}, pods, metric.Name, selector)
	if err != nil {
		a.available.Invalidate()
		return nil, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	out := map[string]sample{}
	for _, m := range l.Items {
		window := time.Minute
		if m.WindowSeconds != nil {
			window = time.Duration(*m.WindowSeconds) * time.Second
		}
		out[m.DescribedObject.Name] = sample{value: m.Value.MilliValue(), at: m.Timestamp.Time, window: window}
	}
	return out, nil
}

func (a *apis) Object(_ context.Context, namespace string, of autoscalingv2.CrossVersionObjectReference, metric autoscalingv2.MetricIdentifier) (int64, error) {
	selector, err := metav1.LabelSelectorAsSelector(orAll(metric.Selector))
	if err != nil {
		return 0, err
	}
	kind := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind).GroupKind()
	var from custom_metrics.MetricsInterface = a.custom.NamespacedMetrics(namespace)
	if m, err := a.mapper.RESTMapping(kind); err == nil && m.Scope.Name() == meta.RESTScopeNameRoot && kind != (schema.GroupKind{Kind: "Namespace"}) {
		from = a.custom.RootScopedMetrics()
	}
	v, err := from.GetForObject(kind, of.Name, metric.Name, selector)
	if err != nil {
		a.available.Invalidate()
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return v.Value.MilliValue(), nil
}

func (a *apis) External(_ context.Context, namespace string, metric autoscalingv2.MetricIdentifier) (int64, error) {
	selector, err := metav1.LabelSelectorAsSelector(orAll(metric.Selector))
	if err != nil {
		return 0, err
	}
	l, err := a.external.NamespacedMetrics(namespace).List(metric.Name, selector)
	if err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(l.Items) == 0 {
		return 0, fmt.Errorf("no values of the external metric %s", metric.Name)
	}
	var sum int64
	for _, v := range l.Items {
		sum += v.Value.MilliValue()
	}
	return sum, nil
}

func orAll(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return &metav1.LabelSelector{}
	}
	return s
}
