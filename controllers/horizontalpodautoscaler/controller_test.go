package horizontalpodautoscaler

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	scalefake "k8s.io/client-go/scale/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
	"github.com/tripod-cluster/tripod/controllers/runtime/scales"
)

// rig is an autoscaler whose looks the test makes itself.
type rig struct {
	t       *testing.T
	c       *runtimetest.Cluster
	ctl     *controller
	clock   *clocktesting.FakeClock
	metrics *fakeMetrics

	mu   sync.Mutex
	size int32
}

type fakeMetrics struct {
	samples  map[string]sample
	external int64
	err      error // of the resource metric
}

func (f *fakeMetrics) Resource(context.Context, string, labels.Selector, corev1.ResourceName, string) (map[string]sample, error) {
	return f.samples, f.err
}
func (f *fakeMetrics) Pods(context.Context, string, labels.Selector, autoscalingv2.MetricIdentifier) (map[string]sample, error) {
	return f.samples, nil
}
func (f *fakeMetrics) Object(context.Context, string, autoscalingv2.CrossVersionObjectReference, autoscalingv2.MetricIdentifier) (int64, error) {
	return f.external, nil
}
func (f *fakeMetrics) External(context.Context, string, autoscalingv2.MetricIdentifier) (int64, error) {
	return f.external, nil
}

func cpu(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

func queueLength(perPod string) autoscalingv2.MetricSpec {
	q := resource.MustParse(perPod)
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &q},
	}}
}

func newScaler(least, most int32, metrics ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "hpa"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    &least, MaxReplicas: most, Metrics: metrics,
		},
	}
}

func newRig(t *testing.T, size int32, pods string, scalers ...*autoscalingv2.HorizontalPodAutoscaler) *rig {
	t.Helper()
	all, samples := parsePods(t, pods)
	var objects []apiruntime.Object
	for _, p := range all {
		objects = append(objects, p)
	}
	for _, s := range scalers {
		objects = append(objects, s)
	}
	r := &rig{t: t, c: runtimetest.New(t, objects...), clock: clocktesting.NewFakeClock(now), metrics: &fakeMetrics{samples: samples}, size: size}
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gvk.GroupVersion()})
	mapper.Add(gvk, meta.RESTScopeNamespace)
	getter := &scalefake.FakeScaleClient{}
	getter.AddReactor("get", "deployments", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return true, &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: autoscalingv1.ScaleSpec{Replicas: r.size}, Status: autoscalingv1.ScaleStatus{Replicas: r.size, Selector: "app=web"}}, nil
	})
	getter.AddReactor("update", "deployments", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		s := a.(clienttesting.UpdateAction).GetObject().(*autoscalingv1.Scale)
		r.size = s.Spec.Replicas
		return true, s, nil
	})
	informers := r.c.Informers
	r.ctl = &controller{
		client: r.c.Clientset, scales: &scales.Client{Mapper: mapper, Getter: getter}, metrics: r.metrics,
		scalers: informers.Autoscaling().V2().HorizontalPodAutoscalers().Lister(), pods: informers.Core().V1().Pods().Lister(),
		events: r.c.Events, clock: r.clock, memories: map[types.UID]*memory{}, selectors: map[types.UID]labels.Selector{},
	}
	informers.StartWithContext(t.Context())
	informers.WaitForCacheSyncWithContext(t.Context())
	return r
}

// look makes one look and checks the size after it.
func (r *rig) look(want int32) *autoscalingv2.HorizontalPodAutoscaler {
	r.t.Helper()
	before := r.stored()
	if after, err := r.ctl.reconcile(r.t.Context(), "default/web"); err != nil || after != period {
		r.t.Fatalf("reconcile: %s, %v", after, err)
	}
	if r.size != want {
		r.t.Errorf("size %d, want %d; %+v", r.size, want, r.stored().Status.Conditions)
	}
	hpa := r.stored()
	if hpa.ResourceVersion != before.ResourceVersion { // wait for the cache to show it
		runtimetest.Eventually(r.t, func() string {
			if cached, err := r.ctl.scalers.HorizontalPodAutoscalers("default").Get("web"); err != nil || cached.ResourceVersion != hpa.ResourceVersion {
				return "the cache does not show the status"
			}
			return ""
		})
	}
	return hpa
}

func (r *rig) stored() *autoscalingv2.HorizontalPodAutoscaler {
	r.t.Helper()
	hpa, err := r.c.AutoscalingV2().HorizontalPodAutoscalers("default").Get(r.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return hpa
}

func reason(hpa *autoscalingv2.HorizontalPodAutoscaler, t autoscalingv2.HorizontalPodAutoscalerConditionType) string {
	for _, c := range hpa.Status.Conditions {
		if c.Type == t {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func TestScalesUpAtOnceAndDownLater(t *testing.T) {
	r := newRig(t, 3, "100 100 100", newScaler(1, 10, cpu(50)))
	hpa := r.look(6)
	if reason(hpa, autoscalingv2.ScalingActive) != "True ValidMetricFound" || reason(hpa, autoscalingv2.AbleToScale) != "True SucceededRescale" || hpa.Status.LastScaleTime == nil {
		t.Errorf("%+v", hpa.Status)
	}
	if m := hpa.Status.CurrentMetrics; len(m) != 1 || *m[0].Resource.Current.AverageUtilization != 100 {
		t.Errorf("metrics %+v", m)
	}
	_, r.metrics.samples = parsePods(t, "10 10 10")
	r.clock.Step(time.Minute)
	if hpa = r.look(6); reason(hpa, autoscalingv2.AbleToScale) != "True ScaleDownStabilized" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
	r.clock.Step(10 * time.Minute)
	r.look(1)
}

func TestMissingMetricsNeverScaleDown(t *testing.T) {
	r := newRig(t, 3, "10 10 10", newScaler(1, 10, cpu(50), queueLength("10")))
	r.ctl.memory("hpa").proposals = []timed{{0, now.Add(-time.Hour)}} // watched for long
	r.metrics.err = errors.New("metrics are down")
	r.metrics.external = 10_000 // one pod would do
	hpa := r.look(3)
	if reason(hpa, autoscalingv2.ScalingActive) != "False FailedGetResourceMetric" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
	r.metrics.external = 50_000 // five are needed
	r.clock.Step(period)
	r.look(5)
	r.metrics.err, r.metrics.external = nil, 10_000
	r.clock.Step(time.Hour)
	r.look(1)
}

func TestBoundsHoldWithoutMetrics(t *testing.T) {
	r := newRig(t, 30, "", newScaler(4, 10, cpu(50)))
	r.look(10)
	r.size = 2
	r.look(4)
}

func TestToZeroAndBack(t *testing.T) {
	r := newRig(t, 1, "10", newScaler(0, 10, queueLength("10")))
	r.ctl.memory("hpa").proposals = []timed{{0, now.Add(-time.Hour)}}
	hpa := r.look(0)
	if reason(hpa, autoscalingv2.ScaledToZero) != "True ScaledToZero" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
	r.metrics.external = 25_000
	r.clock.Step(period)
	if hpa = r.look(3); reason(hpa, autoscalingv2.ScaledToZero) != "False NotScaledToZero" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
	// Somebody's own zero is an off switch.
	r.size = 0
	if hpa = r.look(0); reason(hpa, autoscalingv2.ScalingActive) != "False ScalingDisabled" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
}

func TestTwoAutoscalersOfOneTarget(t *testing.T) {
	other := newScaler(1, 10, cpu(50))
	other.Name, other.UID = "other", "other"
	r := newRig(t, 3, "100 100 100", newScaler(1, 10, cpu(50)), other)
	if hpa := r.look(3); reason(hpa, autoscalingv2.ScalingActive) != "False AmbiguousSelector" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
}

func TestTwoTargetsThatSelectTheSamePods(t *testing.T) {
	other := newScaler(1, 10, cpu(50))
	other.Name, other.UID, other.Spec.ScaleTargetRef.Name = "other", "other", "another-target"
	r := newRig(t, 3, "100 100 100", newScaler(1, 10, cpu(50)), other)
	// What the other target selects is known from the look at its autoscaler.
	r.ctl.selectors["other"] = labels.SelectorFromSet(labels.Set{"app": "web"})
	if hpa := r.look(3); reason(hpa, autoscalingv2.ScalingActive) != "False AmbiguousSelector" {
		t.Errorf("%+v", hpa.Status.Conditions)
	}
	r.ctl.selectors["other"] = labels.SelectorFromSet(labels.Set{"app": "else"})
	r.look(6)
}

func TestSettledAutoscalerWritesNothing(t *testing.T) {
	r := newRig(t, 3, "50 50 50", newScaler(1, 10, cpu(50)))
	r.look(3)
	before := r.c.Writes()
	for range 3 {
		r.clock.Step(period)
		r.look(3)
	}
	if w := r.c.Writes() - before; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}
