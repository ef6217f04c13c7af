package horizontalpodautoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
	"github.com/tripod-cluster/tripod/controllers/runtime/scales"
)

// period is how often each autoscaler is looked at; upstream's default.
const period = 15 * time.Second

type controller struct {
	client  kubernetes.Interface
	scales  *scales.Client
	metrics Metrics
	scalers autoscalinglisters.HorizontalPodAutoscalerLister
	pods    corelisters.PodLister
	events  record.EventRecorder
	clock   clock.PassiveClock

	mu       sync.Mutex
	memories map[types.UID]*memory
	// selectors are those of the autoscalers' targets, as seen last.
	selectors map[types.UID]labels.Selector
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue, s *scales.Client, m Metrics) (runtime.Controller, error) {
	scalers, pods := d.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, scales: s, metrics: m, scalers: scalers.Lister(), pods: pods.Lister(),
		events: d.Recorder, clock: d.Clock, memories: map[types.UID]*memory{},
		selectors: map[types.UID]labels.Selector{},
	}
	key := func(hpa *autoscalingv2.HorizontalPodAutoscaler) string { return hpa.Namespace + "/" + hpa.Name }
	return runtime.Controller{
		Sources: []runtime.Source{runtime.On(scalers.Informer(), runtime.Handlers[*autoscalingv2.HorizontalPodAutoscaler]{
			Add: func(hpa *autoscalingv2.HorizontalPodAutoscaler) { q.Add(key(hpa)) },
			Update: func(o, n *autoscalingv2.HorizontalPodAutoscaler) {
				// Its status is ours; what depends on time comes by time.
				if o.UID != n.UID || !equality.Semantic.DeepEqual(o.Spec, n.Spec) {
					q.Add(key(n))
				}
			},
			Delete: c.forget,
		})},
		Synced:    []cache.InformerSynced{pods.Informer().HasSynced},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) forget(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.memories, hpa.UID)
	delete(c.selectors, hpa.UID)
}

// memory returns what is remembered of an autoscaler. Only the reconcile of its
// key uses it.
func (c *controller) memory(uid types.UID) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memories[uid]
	if m == nil {
		m = &memory{}
		c.memories[uid] = m
	}
	return m
}

func ready(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && podstate.Ready(pod) }

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	hpa, err := c.scalers.HorizontalPodAutoscalers(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || hpa.DeletionTimestamp != nil {
		return 0, err
	}
	next := hpa.DeepCopy()
	workErr := c.work(ctx, hpa, next)
	if equality.Semantic.DeepEqual(hpa.Status, next.Status) {
		return period, c.told(workErr)
	}
	if _, err := c.client.AutoscalingV2().HorizontalPodAutoscalers(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, errors.Join(workErr, fmt.Errorf("update status of horizontal pod autoscaler %s: %w", key, err))
	}
	return period, c.told(workErr)
}

// errTold are failures that the conditions and events tell of: the next look is
// in a period, and an earlier one of no use.
type errTold struct{ error }

func (e errTold) Unwrap() error { return e.error }

func (c *controller) told(err error) error {
	var told errTold
	if errors.As(err, &told) {
		return nil
	}
	return err
}

// work does one look: it changes the scale and the status of next.
func (c *controller) work(ctx context.Context, hpa, next *autoscalingv2.HorizontalPodAutoscaler) error {
	now, st := c.clock.Now(), &next.Status
	generation := hpa.Generation
	st.ObservedGeneration = &generation
	fail := func(t autoscalingv2.HorizontalPodAutoscalerConditionType, reason, message string, err error) error {
		c.events.Event(hpa, corev1.EventTypeWarning, reason, err.Error())
		set(st, t, corev1.ConditionFalse, reason, fmt.Sprintf("%s: %v", message, err), now)
		return errTold{err}
	}
	ref := hpa.Spec.ScaleTargetRef
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	scale, resource, err := c.scales.Get(ctx, hpa.Namespace, gvk, ref.Name)
	if err != nil {
		return fail(autoscalingv2.AbleToScale, "FailedGetScale", "the HPA controller was unable to get the target's current scale", err)
	}
	set(st, autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale", now)
	current := int(scale.Spec.Replicas)
	least, most := 1, int(hpa.Spec.MaxReplicas)
	if hpa.Spec.MinReplicas != nil {
		least = int(*hpa.Spec.MinReplicas)
	}
	up, down := behavior(hpa)
	mem := c.memory(hpa.UID)
	want, reason := current, ""
	st.CurrentReplicas = scale.Status.Replicas
	scaledToZero := holds(st, autoscalingv2.ScaledToZero)
	switch {
	case current == 0 && !scaledToZero, current == 0 && least == 0 && !ofTheWhole(hpa):
		st.DesiredReplicas, st.CurrentMetrics = 0, nil
		set(st, autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero", now)
		return nil
	case current > most:
		want, reason = most, "Current number of replicas above Spec.MaxReplicas"
	case current < least:
		want, reason = least, "Current number of replicas below Spec.MinReplicas"
	default:
		t, err := c.observe(hpa, scale.Status.Selector, current)
		if err != nil {
			return fail(autoscalingv2.ScalingActive, "InvalidSelector", "the HPA target's scale has no usable selector", err)
		}
		if other := c.rival(hpa, t); other != "" {
			return fail(autoscalingv2.ScalingActive, "AmbiguousSelector", "the target's pods have two autoscalers",
				fmt.Errorf("pods by selector %s are controlled by more than one HPA (e.g. %s and %s)", scale.Status.Selector, hpa.Name, other))
		}
		e := c.evaluate(ctx, hpa, t, tolerances{up: up.tolerance, down: down.tolerance})
		st.CurrentMetrics = e.statuses
		if e.err != nil {
			c.events.Event(hpa, corev1.EventTypeWarning, e.reason, e.err.Error())
		}
		if !e.ok {
			st.DesiredReplicas = int32(current)
			return fail(autoscalingv2.ScalingActive, e.reason, "the HPA was unable to compute the replica count", e.err)
		}
		set(st, autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+e.metric, now)
		stable := mem.stabilize(current, e.replicas, up, down, now)
		if stable != e.replicas {
			set(st, autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation", now)
			if e.replicas > stable {
				set(st, autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation", now)
			}
		} else {
			set(st, autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale", "recommended size matches current size", now)
		}
		var why bound
		want, why = mem.limit(current, stable, least, most, up, down, now)
		limited := corev1.ConditionTrue
		if why == unbounded {
			limited = corev1.ConditionFalse
		}
		set(st, autoscalingv2.ScalingLimited, limited, why.reason, why.message, now)
		reason = "All metrics below target"
		if want > current {
			reason = e.metric + " above target"
		}
	}
	st.DesiredReplicas = int32(want)
	if want == current {
		return nil
	}
	scale = scale.DeepCopy()
	scale.Spec.Replicas = int32(want)
	if err := c.scales.Update(ctx, resource, scale); err != nil {
		st.DesiredReplicas = int32(current)
		if apierrors.IsConflict(err) {
			return err // somebody else sized it: look again
		}
		return fail(autoscalingv2.AbleToScale, "FailedUpdateScale", "the HPA controller was unable to update the target scale", err)
	}
	mem.scaled(current, want, now)
	at := metav1.NewTime(now)
	st.LastScaleTime = &at
	set(st, autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", want), now)
	if want == 0 {
		set(st, autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero", now)
	} else {
		set(st, autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero", now)
	}
	c.events.Eventf(hpa, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", want, reason)
	return nil
}

// ofTheWhole reports whether a metric is there without pods.
func ofTheWhole(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, m := range hpa.Spec.Metrics {
		if m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType {
			return true
		}
	}
	return false
}

func (c *controller) observe(hpa *autoscalingv2.HorizontalPodAutoscaler, selector string, current int) (target, error) {
	if selector == "" {
		return target{}, errors.New("selector is required")
	}
	s, err := labels.Parse(selector)
	if err != nil {
		return target{}, fmt.Errorf("selector %q: %w", selector, err)
	}
	pods, err := c.pods.Pods(hpa.Namespace).List(s)
	return target{namespace: hpa.Namespace, current: current, selector: s, pods: pods}, err
}

// rival returns the name of another autoscaler of the same target or of some of
// its pods, or "". What another one's target selects is known from its last look.
func (c *controller) rival(hpa *autoscalingv2.HorizontalPodAutoscaler, t target) string {
	all, err := c.scalers.HorizontalPodAutoscalers(hpa.Namespace).List(labels.Everything())
	if err != nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.selectors[hpa.UID] = t.selector
	mine := hpa.Spec.ScaleTargetRef
	for _, o := range all {
		if o.UID == hpa.UID {
			continue
		}
		r := o.Spec.ScaleTargetRef
		if r.Name == mine.Name && schema.FromAPIVersionAndKind(r.APIVersion, r.Kind).GroupKind() == schema.FromAPIVersionAndKind(mine.APIVersion, mine.Kind).GroupKind() {
			return o.Name
		}
		s := c.selectors[o.UID]
		if s != nil && slices.ContainsFunc(t.pods, func(p *corev1.Pod) bool { return s.Matches(labels.Set(p.Labels)) }) {
			return o.Name
		}
	}
	return ""
}

func holds(st *autoscalingv2.HorizontalPodAutoscalerStatus, t autoscalingv2.HorizontalPodAutoscalerConditionType) bool {
	for _, c := range st.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func set(st *autoscalingv2.HorizontalPodAutoscalerStatus, t autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, message string, now time.Time) {
	c := autoscalingv2.HorizontalPodAutoscalerCondition{Type: t, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now)}
	for i := range st.Conditions {
		if st.Conditions[i].Type != t {
			continue
		}
		if st.Conditions[i].Status == status {
			c.LastTransitionTime = st.Conditions[i].LastTransitionTime
		}
		st.Conditions[i] = c
		return
	}
	st.Conditions = append(st.Conditions, c)
}
