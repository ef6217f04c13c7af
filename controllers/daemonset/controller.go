package daemonset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/revision"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// How long a failed pod is kept before it is replaced, at first and at most;
// upstream's values.
const (
	firstBackoff = time.Second
	maxBackoff   = 15 * time.Minute
)

type controller struct {
	client   kubernetes.Interface
	sets     appslisters.DaemonSetLister
	nodes    corelisters.NodeLister
	pods     runtime.PodIndex
	history  revision.History
	writer   runtime.PodWriter
	inFlight *runtime.Expectations
	failures *flowcontrol.Backoff
	events   record.EventRecorder
	clock    clock.Clock
	queue    runtime.Queue
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	apps, core := d.Informers.Apps().V1(), d.Informers.Core().V1()
	index, err := runtime.NewPodIndex(core.Pods().Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	inFlight := runtime.NewExpectations(d.Clock.Now)
	c := &controller{
		client: d.Client, sets: apps.DaemonSets().Lister(), nodes: core.Nodes().Lister(), pods: index,
		history:  revision.History{Client: d.Client, Lister: apps.ControllerRevisions().Lister(), Kind: kind},
		writer:   runtime.PodWriter{Client: d.Client, Events: d.Recorder, InFlight: inFlight},
		inFlight: inFlight, failures: flowcontrol.NewBackOff(firstBackoff, maxBackoff),
		events: d.Recorder, clock: d.Clock, queue: q,
	}
	pods := runtime.PodEvents{
		Queue: q, Kind: kind.GroupKind(), InFlight: inFlight,
		Owner: func(namespace, name string) (metav1.Object, error) {
			return c.sets.DaemonSets(namespace).Get(name)
		},
		Adopters: func(pod *corev1.Pod) []metav1.Object { return runtime.Objects(c.sets.GetPodDaemonSets(pod)) },
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.OwnWithExpectations[*appsv1.DaemonSet](q, apps.DaemonSets().Informer(), inFlight),
			pods.Source(core.Pods().Informer()),
			runtime.On(core.Nodes().Informer(), runtime.Handlers[*corev1.Node]{
				Add: func(*corev1.Node) { c.all() }, Delete: func(*corev1.Node) { c.all() }, Update: c.nodeUpdated,
			}),
			runtime.Each(apps.ControllerRevisions().Informer(), c.revisionChanged),
		},
		Reconcile:  c.reconcile,
		Background: []func(context.Context) error{c.forgetFailures},
	}, nil
}

func (c *controller) all() {
	sets, err := c.sets.List(labels.Everything())
	if err != nil {
		return
	}
	for _, ds := range sets {
		c.queue.Add(ds.Namespace + "/" + ds.Name)
	}
}

// nodeUpdated passes on what decides about fitting; a node's status changes
// often and does not.
func (c *controller) nodeUpdated(o, n *corev1.Node) {
	if !equality.Semantic.DeepEqual(o.Labels, n.Labels) || !equality.Semantic.DeepEqual(o.Spec.Taints, n.Spec.Taints) {
		c.all()
	}
}

func (c *controller) revisionChanged(r *appsv1.ControllerRevision) {
	if key, _, ok := runtime.ControllerKey(r, kind.GroupKind()); ok {
		c.queue.Add(key)
	}
}

// forgetFailures drops what is remembered of pods that have not failed for long.
func (c *controller) forgetFailures(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.clock.After(maxBackoff):
			c.failures.GC()
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	ds, err := c.sets.DaemonSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.inFlight.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of daemon set %s: %w", key, err)
	}
	if selector.Empty() {
		c.events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	if ds.DeletionTimestamp != nil {
		return 0, nil
	}
	// Asked before the cache is read: what is satisfied now is in it.
	settled := c.inFlight.Satisfied(key)
	current, revisions, err := c.revisions(ctx, ds, selector)
	if err != nil {
		return 0, err
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	pods, err := c.claim(ctx, ds, selector)
	if err != nil {
		return 0, err
	}
	s := observe(ds, nodes, pods, sameTemplate(ds, revisions), c.clock.Now())
	var again time.Duration
	var manageErr error
	if settled {
		again, manageErr = c.manage(ctx, key, s, revision.Hash(current))
		if manageErr == nil {
			manageErr = c.history.Delete(ctx, surplus(ds, revisions, current, pods))
		}
	}
	next, after := s.status()
	if !equality.Semantic.DeepEqual(ds.Status, next) {
		updated := ds.DeepCopy()
		updated.Status = next
		if _, err := c.client.AppsV1().DaemonSets(namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(manageErr, fmt.Errorf("update status of daemon set %s: %w", key, err))
		}
	}
	if again > 0 && (after == 0 || again < after) {
		after = again
	}
	return after, manageErr
}

func (c *controller) fresh(ds *appsv1.DaemonSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().DaemonSets(ds.Namespace).Get(ctx, ds.Name, metav1.GetOptions{})
	}
}

// revisions returns the revision of the current template, and all of them.
func (c *controller) revisions(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector) (*appsv1.ControllerRevision, []*appsv1.ControllerRevision, error) {
	all, err := c.history.List(ctx, ds, selector, c.fresh(ds))
	if err != nil {
		return nil, nil, err
	}
	current, all, err := c.history.Sync(ctx, ds, &ds.Spec.Template, all, ds.Status.CollisionCount)
	if !errors.Is(err, revision.ErrCollision) {
		return current, all, err
	}
	next := ds.DeepCopy()
	if next.Status.CollisionCount == nil {
		next.Status.CollisionCount = new(int32)
	}
	*next.Status.CollisionCount++
	if _, err := c.client.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return nil, nil, fmt.Errorf("count hash collision of daemon set %s/%s: %w", ds.Namespace, ds.Name, err)
	}
	return nil, nil, runtime.Silent(err)
}

// sameTemplate tells whether a pod is of the current template, by its hash.
func sameTemplate(ds *appsv1.DaemonSet, revisions []*appsv1.ControllerRevision) func(*corev1.Pod) bool {
	hashes := map[string]bool{}
	for _, r := range revisions {
		if revision.Holds(r, &ds.Spec.Template) {
			hashes[revision.Hash(r)] = true
		}
	}
	return func(p *corev1.Pod) bool { return hashes[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] }
}

// surplus returns the revisions that no pod has, beyond the history limit.
func surplus(ds *appsv1.DaemonSet, revisions []*appsv1.ControllerRevision, current *appsv1.ControllerRevision, pods []*corev1.Pod) []*appsv1.ControllerRevision {
	return revision.Surplus(revisions, func(r *appsv1.ControllerRevision) bool {
		return r.Name == current.Name || slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == revision.Hash(r)
		})
	}, ds.Spec.RevisionHistoryLimit)
}

// claim returns the pods of ds, adopting and releasing where that is due.
func (c *controller) claim(ctx context.Context, ds *appsv1.DaemonSet, selector labels.Selector) ([]*corev1.Pod, error) {
	candidates := slices.Concat(c.pods.OwnedBy(ds.UID), c.pods.Orphans(ds.Namespace))
	return runtime.Dependents(ctx, &runtime.Claim{
		Owner: ds, Kind: kind, Selector: selector, Fresh: c.fresh(ds), Patch: runtime.PatchPods(c.client, ds.Namespace),
	}, candidates)
}

// manage creates and deletes pods. It returns when to look again, 0 for never.
func (c *controller) manage(ctx context.Context, key string, s state, hash string) (time.Duration, error) {
	now := c.clock.Now()
	p := s.decide(func(node string) time.Duration {
		k := backoffKey(s.ds, node)
		if !c.failures.IsInBackOffSinceUpdate(k, now) {
			return 0
		}
		return max(c.failures.Get(k), time.Second)
	})
	for _, pod := range p.failed {
		c.failures.Next(backoffKey(s.ds, nodeOf(pod)), now)
		c.events.Eventf(s.ds, corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, nodeOf(pod))
	}
	for _, pod := range p.succeeded {
		c.events.Eventf(s.ds, corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, nodeOf(pod))
	}
	create := make([]*corev1.Pod, len(p.create))
	for i, node := range p.create {
		create[i] = newPod(s.ds, node, hash)
	}
	_, err := c.writer.Create(ctx, key, s.ds, create)
	return p.again, errors.Join(err, c.writer.Delete(ctx, key, s.ds, p.delete))
}
