package deployment

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

var (
	kind    = appsv1.SchemeGroupVersion.WithKind("Deployment")
	setKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
)

type controller struct {
	client      kubernetes.Interface
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	pods        runtime.PodIndex
	events      record.EventRecorder
	clock       clock.PassiveClock
	queue       runtime.Queue
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	apps, pods := d.Informers.Apps().V1(), d.Informers.Core().V1().Pods()
	index, err := runtime.NewPodIndex(pods.Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	c := &controller{
		client: d.Client, deployments: apps.Deployments().Lister(), sets: apps.ReplicaSets().Lister(),
		pods: index, events: d.Recorder, clock: d.Clock, queue: q,
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Own(q, apps.Deployments().Informer()),
			runtime.Each(apps.ReplicaSets().Informer(), c.setChanged),
			runtime.On(pods.Informer(), runtime.Handlers[*corev1.Pod]{Delete: c.podDeleted}),
		},
		Reconcile: c.reconcile,
		Explain:   c.explain,
	}, nil
}

func (c *controller) setChanged(rs *appsv1.ReplicaSet) {
	if key, _, ok := runtime.ControllerKey(rs, kind.GroupKind()); ok {
		c.queue.Add(key)
		return
	}
	if metav1.GetControllerOf(rs) != nil || rs.DeletionTimestamp != nil {
		return
	}
	// An orphan: some Deployment may adopt it.
	all, err := c.deployments.Deployments(rs.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, d := range all {
		if s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil && !s.Empty() && s.Matches(labels.Set(rs.Labels)) {
			c.queue.Add(d.Namespace + "/" + d.Name)
		}
	}
}

// podDeleted wakes a Deployment of the strategy Recreate, which waits for the
// end of its old pods.
func (c *controller) podDeleted(pod *corev1.Pod) {
	key, uid, ok := runtime.ControllerKey(pod, setKind.GroupKind())
	if !ok {
		return
	}
	_, name, err := runtime.SplitKey(key)
	if err != nil {
		return
	}
	rs, err := c.sets.ReplicaSets(pod.Namespace).Get(name)
	if err != nil || rs.UID != uid {
		return
	}
	dkey, _, ok := runtime.ControllerKey(rs, kind.GroupKind())
	if !ok {
		return
	}
	_, dname, _ := runtime.SplitKey(dkey)
	if d, err := c.deployments.Deployments(pod.Namespace).Get(dname); err == nil && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.queue.Add(dkey)
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	d, err := c.deployments.Deployments(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of deployment %s: %w", key, err)
	}
	if selector.Empty() {
		c.events.Event(d, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		return 0, c.writeStatus(ctx, d, appsv1.DeploymentStatus{ObservedGeneration: d.Generation, CollisionCount: d.Status.CollisionCount, Conditions: d.Status.Conditions}, 0)
	}
	sets, err := c.claim(ctx, d, selector)
	if err != nil {
		return 0, err
	}
	r := observe(d, sets, func(keep *appsv1.ReplicaSet) bool { return c.podsLeft(sets, keep) })

	created, createErr := false, error(nil)
	if r.wantsNew() {
		rs, isNew, err := c.create(ctx, r)
		if err != nil {
			if !errors.Is(err, errRetry) && !runtime.NamespaceEnding(err) {
				createErr = err
			} else {
				return 0, runtime.Silent(err)
			}
		} else {
			r.new, created = rs, isNew
		}
	}
	resizeErr := c.resize(ctx, &r)
	s, after := r.status(created, createErr, c.clock.Now())
	rev := int64(0)
	if r.new != nil {
		rev = revision(r.new)
	}
	if err := errors.Join(createErr, resizeErr, c.writeStatus(ctx, d, s, rev)); err != nil {
		return 0, err
	}
	if d.Spec.Paused || complete(d, &s) {
		if err := c.cleanUp(ctx, r); err != nil {
			return 0, err
		}
	}
	return after, nil
}

func (c *controller) claim(ctx context.Context, d *appsv1.Deployment, selector labels.Selector) ([]*appsv1.ReplicaSet, error) {
	all, err := c.sets.ReplicaSets(d.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return runtime.Dependents(ctx, &runtime.Claim{
		Owner: d, Kind: kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := c.client.AppsV1().ReplicaSets(d.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, all)
}

// podsLeft reports whether a ReplicaSet other than keep has pods that have not
// ended.
func (c *controller) podsLeft(sets []*appsv1.ReplicaSet, keep *appsv1.ReplicaSet) bool {
	for _, rs := range sets {
		if keep != nil && rs.UID == keep.UID {
			continue
		}
		for _, pod := range c.pods.OwnedBy(rs.UID) {
			if !podstate.Terminal(pod) {
				return true
			}
		}
	}
	return false
}

// errRetry means that the cache must catch up first.
var errRetry = errors.New("replica set exists already, waiting for the cache")

// create makes the new ReplicaSet. One that is there already is fine when it is
// ours; otherwise its name is taken by another template of the same hash.
func (c *controller) create(ctx context.Context, r rollout) (rs *appsv1.ReplicaSet, isNew bool, err error) {
	want, err := r.newSet()
	if err != nil {
		return nil, false, err
	}
	d, api := r.d, c.client.AppsV1().ReplicaSets(r.d.Namespace)
	rs, err = api.Create(ctx, want, metav1.CreateOptions{})
	switch {
	case err == nil:
		if *want.Spec.Replicas > 0 {
			c.events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", rs.Name, *want.Spec.Replicas)
		}
		return rs, true, nil
	case !apierrors.IsAlreadyExists(err):
		if !runtime.NamespaceEnding(err) {
			c.events.Eventf(d, corev1.EventTypeWarning, reasonCreateFailed, "Failed to create new replica set %q: %v", want.Name, err)
		}
		return nil, false, fmt.Errorf("create replica set %s/%s: %w", d.Namespace, want.Name, err)
	}
	// The cache may be behind, so what is there is read from the API server.
	there, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false, runtime.Silent(fmt.Errorf("read replica set %s/%s: %w", d.Namespace, want.Name, err))
	}
	if ref := metav1.GetControllerOf(there); ref != nil && ref.UID == d.UID && sameTemplate(&d.Spec.Template, &there.Spec.Template) {
		return nil, false, errRetry
	}
	next := d.DeepCopy()
	if next.Status.CollisionCount == nil {
		next.Status.CollisionCount = new(int32)
	}
	*next.Status.CollisionCount++
	if _, err := c.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return nil, false, fmt.Errorf("count hash collision of deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return nil, false, errRetry
}

// resize writes the ReplicaSets whose size or annotations are to change, each
// once. What it wrote replaces what was seen in r.
func (c *controller) resize(ctx context.Context, r *rollout) error {
	sizes := r.sizes()
	var errs []error
	update := func(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
		want := c.wanted(r, rs, sizes)
		if equality.Semantic.DeepEqual(rs.Spec, want.Spec) && equality.Semantic.DeepEqual(rs.Annotations, want.Annotations) {
			return rs
		}
		got, err := c.client.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, want, metav1.UpdateOptions{})
		if err != nil {
			errs = append(errs, fmt.Errorf("update replica set %s/%s: %w", rs.Namespace, rs.Name, err))
			return rs
		}
		if from, to := *rs.Spec.Replicas, *want.Spec.Replicas; from != to {
			way := "up"
			if to < from {
				way = "down"
			}
			c.events.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", way, rs.Name, from, to)
		}
		return got
	}
	if r.new != nil {
		r.new = update(r.new)
	}
	if len(errs) == 0 { // a stale view of the new one: do not shrink the old ones by it
		for i, rs := range r.old {
			r.old[i] = update(rs)
		}
	}
	return errors.Join(errs...)
}

// wanted returns rs as it should be.
func (c *controller) wanted(r *rollout, rs *appsv1.ReplicaSet, sizes map[string]int32) *appsv1.ReplicaSet {
	d, want := r.d, rs.DeepCopy()
	if d.DeletionTimestamp != nil {
		return want
	}
	size, resized := sizes[rs.Name]
	if resized {
		*want.Spec.Replicas = size
	}
	if rs == r.new {
		annotate(d, want, maxRevision(r.old)+1)
		want.Spec.MinReadySeconds = d.Spec.MinReadySeconds
	}
	// Without replicas the notes would only be rewritten on each scaling.
	if resized && (*want.Spec.Replicas > 0 || *rs.Spec.Replicas > 0) {
		setSizeAnnotations(want, *d.Spec.Replicas, *d.Spec.Replicas+surge(d))
	}
	return want
}

func (c *controller) cleanUp(ctx context.Context, r rollout) error {
	for _, rs := range r.surplus() {
		err := c.client.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(rs.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete old replica set %s/%s: %w", rs.Namespace, rs.Name, err)
		}
	}
	return nil
}

// writeStatus writes status and, when rev is positive, the revision annotation,
// which the status endpoint accepts.
func (c *controller) writeStatus(ctx context.Context, d *appsv1.Deployment, s appsv1.DeploymentStatus, rev int64) error {
	want := d.DeepCopy()
	want.Status = s
	if rev > 0 {
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		want.Annotations[revisionAnnotation] = strconv.FormatInt(rev, 10)
	}
	if equality.Semantic.DeepEqual(d.Status, want.Status) && equality.Semantic.DeepEqual(d.Annotations, want.Annotations) {
		return nil
	}
	if _, err := c.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, want, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update status of deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return nil
}
