package statefulset

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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/revision"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

type controller struct {
	client   kubernetes.Interface
	sets     appslisters.StatefulSetLister
	claims   corelisters.PersistentVolumeClaimLister
	pods     runtime.PodIndex
	history  revision.History
	writer   runtime.PodWriter
	inFlight *runtime.Expectations
	events   record.EventRecorder
	clock    clock.PassiveClock
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
		client: d.Client, sets: apps.StatefulSets().Lister(), claims: core.PersistentVolumeClaims().Lister(), pods: index,
		history:  revision.History{Client: d.Client, Lister: apps.ControllerRevisions().Lister(), Kind: kind},
		writer:   runtime.PodWriter{Client: d.Client, Events: d.Recorder, InFlight: inFlight},
		inFlight: inFlight, events: d.Recorder, clock: d.Clock,
	}
	pods := runtime.PodEvents{
		Queue: q, Kind: kind.GroupKind(), InFlight: inFlight,
		Owner: func(namespace, name string) (metav1.Object, error) {
			return c.sets.StatefulSets(namespace).Get(name)
		},
		Adopters: func(pod *corev1.Pod) []metav1.Object { return runtime.Objects(c.sets.GetPodStatefulSets(pod)) },
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.OwnWithExpectations[*appsv1.StatefulSet](q, apps.StatefulSets().Informer(), inFlight),
			pods.Source(core.Pods().Informer()),
			runtime.Each(apps.ControllerRevisions().Informer(), func(r *appsv1.ControllerRevision) {
				if key, _, ok := runtime.ControllerKey(r, kind.GroupKind()); ok {
					q.Add(key)
				}
			}),
		},
		Synced:    []cache.InformerSynced{core.PersistentVolumeClaims().Informer().HasSynced},
		Reconcile: c.reconcile,
		Explain:   c.explain,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	set, err := c.sets.StatefulSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.inFlight.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of stateful set %s: %w", key, err)
	}
	// Asked before the cache is read: what is satisfied now is in it.
	settled := c.inFlight.Satisfied(key)
	pods, err := c.claim(ctx, set, selector)
	if err != nil {
		return 0, err
	}
	update, revisions, err := c.revisions(ctx, set, selector)
	if err != nil {
		return 0, err
	}
	current := update
	if i := slices.IndexFunc(revisions, func(r *appsv1.ControllerRevision) bool { return r.Name == set.Status.CurrentRevision }); i >= 0 {
		current = revisions[i]
	}
	s := observe(set, current.Name, update.Name, pods, c.clock.Now())
	var again time.Duration
	var manageErr error
	if settled && set.DeletionTimestamp == nil {
		again, manageErr = c.manage(ctx, key, s, current, update)
	}
	next, after := s.status()
	if !equality.Semantic.DeepEqual(set.Status, next) {
		updated := set.DeepCopy()
		updated.Status = next
		if _, err := c.client.AppsV1().StatefulSets(namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(manageErr, fmt.Errorf("update status of stateful set %s: %w", key, err))
		}
	}
	if manageErr == nil && set.DeletionTimestamp == nil {
		manageErr = c.history.Delete(ctx, surplus(set, revisions, s, pods))
	}
	if again > 0 && (after == 0 || again < after) {
		after = again
	}
	return after, manageErr
}

func (c *controller) fresh(set *appsv1.StatefulSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

// claim returns the pods of the set, adopting and releasing where that is due.
// Pods whose names are not of the set are none of its.
func (c *controller) claim(ctx context.Context, set *appsv1.StatefulSet, selector labels.Selector) ([]*corev1.Pod, error) {
	candidates := slices.Concat(c.pods.OwnedBy(set.UID), c.pods.Orphans(set.Namespace))
	candidates = slices.DeleteFunc(candidates, func(p *corev1.Pod) bool { return !isOfSet(set, p.Name) })
	return runtime.Dependents(ctx, &runtime.Claim{
		Owner: set, Kind: kind, Selector: selector, Fresh: c.fresh(set), Patch: runtime.PatchPods(c.client, set.Namespace),
	}, candidates)
}

// revisions returns the revision of the current template, and all of them.
func (c *controller) revisions(ctx context.Context, set *appsv1.StatefulSet, selector labels.Selector) (*appsv1.ControllerRevision, []*appsv1.ControllerRevision, error) {
	all, err := c.history.List(ctx, set, selector, c.fresh(set))
	if err != nil {
		return nil, nil, err
	}
	update, all, err := c.history.Sync(ctx, set, &set.Spec.Template, all, set.Status.CollisionCount)
	if !errors.Is(err, revision.ErrCollision) {
		return update, all, err
	}
	next := set.DeepCopy()
	if next.Status.CollisionCount == nil {
		next.Status.CollisionCount = new(int32)
	}
	*next.Status.CollisionCount++
	if _, err := c.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		return nil, nil, fmt.Errorf("count hash collision of stateful set %s/%s: %w", set.Namespace, set.Name, err)
	}
	return nil, nil, runtime.Silent(err)
}

// surplus returns the revisions that neither a pod nor the update has, beyond
// the history limit.
func surplus(set *appsv1.StatefulSet, revisions []*appsv1.ControllerRevision, s state, pods []*corev1.Pod) []*appsv1.ControllerRevision {
	return revision.Surplus(revisions, func(r *appsv1.ControllerRevision) bool {
		return r.Name == s.current || r.Name == s.update ||
			slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return revisionOf(p) == r.Name })
	}, set.Spec.RevisionHistoryLimit)
}

// manage does what the plan says. It returns when to look again, 0 for never.
func (c *controller) manage(ctx context.Context, key string, s state, current, update *appsv1.ControllerRevision) (time.Duration, error) {
	p := s.decide()
	var again time.Duration
	var errs []error
	for _, n := range s.replicas {
		if err := c.keep(ctx, s.set, n); err != nil {
			errs = append(errs, err)
		}
	}
	var create []*corev1.Pod
	for _, n := range p.create {
		from := update
		if n.revision == current.Name {
			from = current
		}
		template, err := revision.Template(from)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ready, err := c.prepareClaims(ctx, s.set, n.ordinal)
		switch {
		case err != nil:
			c.events.Eventf(s.set, corev1.EventTypeWarning, "FailedCreate", "create Claim for Pod %s in StatefulSet %s failed error: %v", podName(s.set, n.ordinal), s.set.Name, err)
			errs = append(errs, err)
		case !ready:
			again = claimWait
		default:
			create = append(create, newPod(s.set, template, n.revision, n.ordinal))
		}
	}
	if _, err := c.writer.Create(ctx, key, s.set, create); err != nil {
		errs = append(errs, err)
	}
	gone := p.delete
	for _, n := range p.condemn {
		if err := c.ownClaims(ctx, s.set, n, true); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, n.pod)
	}
	if err := c.writer.Delete(ctx, key, s.set, gone); err != nil {
		errs = append(errs, err)
	}
	return again, errors.Join(errs...)
}
