package replicaset

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

type controller struct {
	client   kubernetes.Interface
	sets     appslisters.ReplicaSetLister
	pods     runtime.PodIndex
	events   record.EventRecorder
	clock    clock.PassiveClock
	inFlight *runtime.Expectations
	queue    runtime.Queue
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	sets, pods := d.Informers.Apps().V1().ReplicaSets(), d.Informers.Core().V1().Pods()
	index, err := runtime.NewPodIndex(pods.Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	c := &controller{
		client: d.Client, sets: sets.Lister(), pods: index, events: d.Recorder, clock: d.Clock,
		inFlight: runtime.NewExpectations(d.Clock.Now), queue: q,
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(sets.Informer(), runtime.Handlers[*appsv1.ReplicaSet]{
				Add: func(rs *appsv1.ReplicaSet) { q.Add(keyOf(rs)) },
				Update: func(o, n *appsv1.ReplicaSet) {
					if o.UID != n.UID { // deleted and made anew between two events
						c.inFlight.Forget(keyOf(o))
					}
					q.Add(keyOf(n))
				},
				Delete: func(rs *appsv1.ReplicaSet) {
					c.inFlight.Forget(keyOf(rs))
					q.Add(keyOf(rs))
				},
			}),
			runtime.On(pods.Informer(), runtime.Handlers[*corev1.Pod]{
				Add: c.podAdded, Update: c.podUpdated, Delete: c.podDeleted,
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// ownerKey returns the key of the ReplicaSet that controls pod, if it exists.
func (c *controller) ownerKey(pod *corev1.Pod) (string, bool) {
	key, uid, ok := runtime.ControllerKey(pod, kind.GroupKind())
	if !ok {
		return "", false
	}
	rs, err := c.sets.ReplicaSets(pod.Namespace).Get(key[len(pod.Namespace)+1:])
	if err != nil || rs.UID != uid {
		return "", false
	}
	return key, true
}

func (c *controller) podAdded(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		c.podDeleted(pod)
		return
	}
	if key, ok := c.ownerKey(pod); ok {
		c.inFlight.CreationObserved(key)
		c.queue.Add(key)
	} else if metav1.GetControllerOf(pod) == nil {
		c.offer(pod)
	}
}

func (c *controller) podUpdated(o, n *corev1.Pod) {
	if o.ResourceVersion == n.ResourceVersion && o.ResourceVersion != "" {
		return
	}
	if n.DeletionTimestamp != nil {
		// The grace period may be long: the replacement does not wait for it.
		c.podDeleted(n)
		if !equality.Semantic.DeepEqual(o.Labels, n.Labels) {
			c.podDeleted(o)
		}
		return
	}
	oldKey, hadOwner := c.ownerKey(o)
	key, hasOwner := c.ownerKey(n)
	if hadOwner && (!hasOwner || oldKey != key) {
		c.queue.Add(oldKey)
	}
	if hasOwner {
		c.queue.Add(key)
	} else if metav1.GetControllerOf(n) == nil && (hadOwner || !equality.Semantic.DeepEqual(o.Labels, n.Labels)) {
		c.offer(n)
	}
}

func (c *controller) podDeleted(pod *corev1.Pod) {
	if key, ok := c.ownerKey(pod); ok {
		c.inFlight.DeletionObserved(key, pod.UID)
		c.queue.Add(key)
	}
}

// offer queues the ReplicaSets that may adopt an orphan.
func (c *controller) offer(pod *corev1.Pod) {
	sets, err := c.sets.GetPodReplicaSets(pod)
	if err != nil {
		return // no set selects it
	}
	for _, rs := range sets {
		c.queue.Add(keyOf(rs))
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	rs, err := c.sets.ReplicaSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.inFlight.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of replica set %s: %w", key, err)
	}
	// Asked before the cache is read: what is satisfied now is in it.
	settled := c.inFlight.Satisfied(key)
	active, terminating, err := c.claim(ctx, rs, selector)
	if err != nil {
		return 0, err
	}
	now := c.clock.Now()
	var manageErr error
	if settled && rs.DeletionTimestamp == nil {
		manageErr = c.manage(ctx, key, rs, active, now)
	}
	next, after := status(rs, active, terminating, manageErr, now)
	if !equality.Semantic.DeepEqual(rs.Status, next) {
		updated := rs.DeepCopy()
		updated.Status = next
		if _, err := c.client.AppsV1().ReplicaSets(namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(manageErr, fmt.Errorf("update status of replica set %s: %w", key, err))
		}
	}
	return after, manageErr
}

// claim returns the pods of rs, adopting and releasing where that is due.
func (c *controller) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector) (active, terminating []*corev1.Pod, err error) {
	candidates := slices.Concat(c.pods.OwnedBy(rs.UID), c.pods.Orphans(rs.Namespace))
	candidates = slices.DeleteFunc(candidates, podstate.Terminal)
	mine, err := runtime.Dependents(ctx, &runtime.Claim{
		Owner: rs, Kind: kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.client.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := c.client.CoreV1().Pods(rs.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, candidates)
	active, terminating = split(mine)
	return active, terminating, err
}

func (c *controller) manage(ctx context.Context, key string, rs *appsv1.ReplicaSet, active []*corev1.Pod, now time.Time) error {
	var related []*corev1.Pod
	if len(active) > int(*rs.Spec.Replicas) {
		related = c.related(rs)
	}
	p := decide(rs, active, related, now)
	if p.create > 0 {
		return c.create(ctx, key, rs, p.create)
	}
	return c.delete(ctx, key, rs, p.delete)
}

// related returns the pods of all ReplicaSets with the same controller as rs.
func (c *controller) related(rs *appsv1.ReplicaSet) []*corev1.Pod {
	owner := metav1.GetControllerOf(rs)
	if owner == nil {
		return c.pods.OwnedBy(rs.UID)
	}
	siblings, err := c.sets.ReplicaSets(rs.Namespace).List(labels.Everything())
	if err != nil {
		return c.pods.OwnedBy(rs.UID)
	}
	var pods []*corev1.Pod
	for _, s := range siblings {
		if ref := metav1.GetControllerOf(s); ref != nil && ref.UID == owner.UID {
			pods = append(pods, c.pods.OwnedBy(s.UID)...)
		}
	}
	return pods
}

func (c *controller) create(ctx context.Context, key string, rs *appsv1.ReplicaSet, n int) error {
	c.inFlight.ExpectCreations(key, n)
	created, err := runtime.SlowStart(n, func() error {
		pod, err := c.client.CoreV1().Pods(rs.Namespace).Create(ctx, runtime.PodFrom(&rs.Spec.Template, rs, kind), metav1.CreateOptions{})
		switch {
		case err == nil:
			c.events.Eventf(rs, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %s", pod.Name)
		case runtime.NamespaceEnding(err):
			c.inFlight.CreationObserved(key)
			return nil
		default:
			c.events.Eventf(rs, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	})
	for range n - created {
		c.inFlight.CreationObserved(key)
	}
	if err != nil {
		return fmt.Errorf("create pod: %w", err)
	}
	return nil
}

func (c *controller) delete(ctx context.Context, key string, rs *appsv1.ReplicaSet, pods []*corev1.Pod) error {
	for _, pod := range pods {
		c.inFlight.ExpectDeletion(key, pod.UID)
	}
	errs := make([]error, len(pods))
	runtime.Parallel(len(pods), 32, func(i int) {
		pod := pods[i]
		err := c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err == nil {
			c.events.Eventf(rs, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %s", pod.Name)
			return
		}
		c.inFlight.DeletionObserved(key, pod.UID)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return // gone already, or another pod of its name
		}
		c.events.Eventf(rs, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		errs[i] = err
	})
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("delete pod: %w", err)
		}
	}
	return nil
}
