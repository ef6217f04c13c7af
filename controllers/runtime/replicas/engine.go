package replicas

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
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// Owner is what the engine must know of a kind of owners. What the functions
// return may be shared, and is not changed.
type Owner struct {
	Kind schema.GroupVersionKind
	// Get returns an owner from the cache as a ReplicaSet, and the object itself,
	// which events are for.
	Get func(namespace, name string) (*appsv1.ReplicaSet, apiruntime.Object, error)
	// Fresh returns an owner from the API server.
	Fresh func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// Adopters returns the owners that may adopt an orphan.
	Adopters func(orphan *corev1.Pod) []metav1.Object
	// Siblings returns the owners whose pods count as those of one workload
	// with the owner's, itself included.
	Siblings func(rs *appsv1.ReplicaSet) []*appsv1.ReplicaSet
	// CountsTerminating is whether the status has terminatingReplicas.
	CountsTerminating bool
	// UpdateStatus writes the status of an owner.
	UpdateStatus func(ctx context.Context, rs *appsv1.ReplicaSet) error
}

type engine struct {
	owner    Owner
	client   kubernetes.Interface
	pods     runtime.PodIndex
	writer   runtime.PodWriter
	clock    clock.PassiveClock
	inFlight *runtime.Expectations
}

// New builds a controller of owners, which are of type T in the informer.
func New[T metav1.Object](d runtime.Deps, q runtime.Queue, owners cache.SharedInformer, o Owner) (runtime.Controller, error) {
	pods := d.Informers.Core().V1().Pods()
	index, err := runtime.NewPodIndex(pods.Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	inFlight := runtime.NewExpectations(d.Clock.Now)
	e := &engine{
		owner: o, client: d.Client, pods: index, clock: d.Clock, inFlight: inFlight,
		writer: runtime.PodWriter{Client: d.Client, Events: d.Recorder, InFlight: inFlight},
	}
	events := runtime.PodEvents{
		Queue: q, Kind: o.Kind.GroupKind(), InFlight: inFlight, Adopters: o.Adopters,
		Owner: func(namespace, name string) (metav1.Object, error) {
			rs, _, err := o.Get(namespace, name)
			return rs, err
		},
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.OwnWithExpectations[T](q, owners, inFlight),
			events.Source(pods.Informer()),
		},
		Reconcile: e.reconcile,
	}, nil
}

func (e *engine) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	rs, object, err := e.owner.Get(namespace, name)
	if apierrors.IsNotFound(err) {
		e.inFlight.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of %s %s: %w", e.owner.Kind.Kind, key, err)
	}
	// Asked before the cache is read: what is satisfied now is in it.
	settled := e.inFlight.Satisfied(key)
	active, terminating, err := e.claim(ctx, rs, selector)
	if err != nil {
		return 0, err
	}
	now := e.clock.Now()
	var manageErr error
	if settled && rs.DeletionTimestamp == nil {
		manageErr = e.manage(ctx, key, rs, object, active, now)
	}
	next, after := status(rs, active, terminating, manageErr, now)
	if !e.owner.CountsTerminating {
		next.TerminatingReplicas = nil
	}
	if !equality.Semantic.DeepEqual(rs.Status, next) {
		updated := rs.DeepCopy()
		updated.Status = next
		if err := e.owner.UpdateStatus(ctx, updated); err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(manageErr, fmt.Errorf("update status of %s %s: %w", e.owner.Kind.Kind, key, err))
		}
	}
	return after, manageErr
}

// claim returns the pods of rs, adopting and releasing where that is due.
func (e *engine) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector) (active, terminating []*corev1.Pod, err error) {
	candidates := slices.Concat(e.pods.OwnedBy(rs.UID), e.pods.Orphans(rs.Namespace))
	candidates = slices.DeleteFunc(candidates, podstate.Terminal)
	mine, err := runtime.Dependents(ctx, &runtime.Claim{
		Owner: rs, Kind: e.owner.Kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) { return e.owner.Fresh(ctx, rs.Namespace, rs.Name) },
		Patch: runtime.PatchPods(e.client, rs.Namespace),
	}, candidates)
	active, terminating = split(mine)
	return active, terminating, err
}

func (e *engine) manage(ctx context.Context, key string, rs *appsv1.ReplicaSet, object apiruntime.Object, active []*corev1.Pod, now time.Time) error {
	var related []*corev1.Pod
	if len(active) > int(*rs.Spec.Replicas) {
		for _, s := range e.owner.Siblings(rs) {
			related = append(related, e.pods.OwnedBy(s.UID)...)
		}
	}
	p := decide(rs, active, related, now)
	create := make([]*corev1.Pod, p.create)
	for i := range create {
		create[i] = runtime.PodFrom(&rs.Spec.Template, rs, e.owner.Kind)
	}
	_, err := e.writer.Create(ctx, key, object, create)
	return errors.Join(err, e.writer.Delete(ctx, key, object, p.delete))
}
