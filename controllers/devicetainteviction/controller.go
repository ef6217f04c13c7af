package devicetainteviction

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

const (
	// ruleKey begins the key of a rule; that of a claim is its namespace and name.
	ruleKey = "rule:"
	// ruleEvery is how often the status of a rule that evicts is written at most.
	ruleEvery = 10 * time.Second
)

type controller struct {
	client kubernetes.Interface
	claims resourcelisters.ResourceClaimLister
	slices resourcelisters.ResourceSliceLister
	rules  resourcelisters.DeviceTaintRuleLister
	pods   corelisters.PodLister
	events record.EventRecorder
	clock  clock.PassiveClock
	queue  runtime.Queue
	of     runtime.Index[*resourcev1.ResourceClaim] // by driver and pool
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	resource, pods := d.Informers.Resource().V1(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, claims: resource.ResourceClaims().Lister(), slices: resource.ResourceSlices().Lister(),
		rules: resource.DeviceTaintRules().Lister(), pods: pods.Lister(), events: d.Recorder, clock: d.Clock, queue: q,
	}
	var err error
	if c.of, err = runtime.NewIndex(resource.ResourceClaims().Informer(), "pool", func(claim *resourcev1.ResourceClaim) (pools []string) {
		if claim.Status.Allocation != nil {
			for _, r := range claim.Status.Allocation.Devices.Results {
				pools = append(pools, r.Driver+"/"+r.Pool)
			}
		}
		return pools
	}); err != nil {
		return runtime.Controller{}, err
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(resource.ResourceClaims().Informer(), runtime.Handlers[*resourcev1.ResourceClaim]{
				Add: c.seeClaim, Update: func(_, n *resourcev1.ResourceClaim) { c.seeClaim(n) },
			}),
			runtime.Each(resource.ResourceSlices().Informer(), func(s *resourcev1.ResourceSlice) {
				for _, claim := range c.of.Get(s.Spec.Driver + "/" + s.Spec.Pool.Name) {
					c.seeClaim(claim)
				}
			}),
			runtime.On(resource.DeviceTaintRules().Informer(), runtime.Handlers[*resourcev1.DeviceTaintRule]{
				Add: c.seeRule,
				Update: func(o, n *resourcev1.DeviceTaintRule) {
					if o.Generation != n.Generation {
						c.seeRule(n)
					}
				},
			}),
			runtime.On(pods.Informer(), runtime.Handlers[*corev1.Pod]{
				Update: func(o, n *corev1.Pod) {
					if o.Spec.NodeName != n.Spec.NodeName {
						c.seePod(n)
					}
				},
			}),
		},
		Synced:    []cache.InformerSynced{pods.Informer().HasSynced, resource.ResourceSlices().Informer().HasSynced},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) seeClaim(claim *resourcev1.ResourceClaim) {
	if claim.Status.Allocation != nil && len(claim.Status.ReservedFor) > 0 {
		c.queue.Add(claim.Namespace + "/" + claim.Name)
	}
}

func (c *controller) seeRule(r *resourcev1.DeviceTaintRule) {
	c.queue.Add(ruleKey + r.Name)
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return
	}
	for _, claim := range all {
		c.seeClaim(claim)
	}
}

func (c *controller) seePod(pod *corev1.Pod) {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			c.queue.Add(pod.Namespace + "/" + *s.ResourceClaimName)
		}
	}
	for _, pc := range pod.Spec.ResourceClaims {
		if pc.ResourceClaimName != nil {
			c.queue.Add(pod.Namespace + "/" + *pc.ResourceClaimName)
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, ruleKey); ok {
		return c.reconcileRule(ctx, name)
	}
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	claim, err := c.claims.ResourceClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	slices, err := c.slices.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	now := c.clock.Now()
	v := judge(claim, slices, rules, now)
	if !v.evict {
		return 0, nil
	}
	if wait := v.at.Sub(now); wait > 0 {
		return wait, nil
	}
	for _, pod := range c.users(claim) {
		if err := c.evict(ctx, pod); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// users returns the pods that have the claim and run, or are about to.
func (c *controller) users(claim *resourcev1.ResourceClaim) (out []*corev1.Pod) {
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup != "" || r.Resource != "pods" {
			continue
		}
		pod, err := c.pods.Pods(claim.Namespace).Get(r.Name)
		if err == nil && pod.UID == r.UID && pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && !podstate.Terminal(pod) {
			out = append(out, pod)
		}
	}
	return out
}

func (c *controller) evict(ctx context.Context, pod *corev1.Pod) error {
	there, err := runtime.SetPodCondition(ctx, c.client, pod, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByDeviceTaintManager",
		Message: "Device Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(c.clock.Now()),
	})
	if err != nil || !there {
		return err // another pod of the name has a key of its own
	}
	c.events.Eventf(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	err = c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// reconcileRule writes how far the evictions of a rule are.
func (c *controller) reconcileRule(ctx context.Context, name string) (time.Duration, error) {
	r, err := c.rules.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pending := 0
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	for _, claim := range all {
		alone := []*resourcev1.DeviceTaintRule{r}
		if judge(claim, nil, alone, c.clock.Now()).evict {
			pending += len(c.users(claim))
		}
	}
	want := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: r.Generation,
		Reason: "Completed", Message: "No pod that is to be evicted is left.",
	}
	switch {
	case r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNone:
		want.Reason, want.Message = "NoEffect", "The taint has no effect."
	case r.Spec.Taint.Effect != resourcev1.DeviceTaintEffectNoExecute:
		want.Reason, want.Message = "OtherEffect", "The effect of the taint is not NoExecute."
	case pending > 0:
		want.Status, want.Reason, want.Message = metav1.ConditionTrue, "PodsPendingEviction", fmt.Sprintf("%d pods are to be evicted.", pending)
	}
	next := r.DeepCopy()
	if meta.SetStatusCondition(&next.Status.Conditions, want) {
		if _, err := c.client.ResourceV1().DeviceTaintRules().UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("write status of device taint rule %s: %w", name, err)
		}
	}
	if r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute {
		return ruleEvery, nil
	}
	return 0, nil
}
