package endpoints

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	endpointsliceutil "k8s.io/endpointslice/util"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// Label that tells whose Endpoints these are, and its value.
const (
	managedByLabel = "endpoints.kubernetes.io/managed-by"
	managedBy      = "endpoint-controller"
)

type controller struct {
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
	triggers  *endpointsliceutil.TriggerTimeTracker
	queue     runtime.Queue

	mu   sync.Mutex
	gone map[string]bool // Services seen deleted
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{
		client: d.Client, services: core.Services().Lister(), pods: core.Pods().Lister(), endpoints: core.Endpoints().Lister(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(), queue: q, gone: map[string]bool{},
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(core.Services().Informer(), runtime.Handlers[*corev1.Service]{
				Add:    func(s *corev1.Service) { q.Add(s.Namespace + "/" + s.Name) },
				Update: func(_, s *corev1.Service) { q.Add(s.Namespace + "/" + s.Name) },
				Delete: func(s *corev1.Service) {
					key := s.Namespace + "/" + s.Name
					c.mu.Lock()
					c.gone[key] = true
					c.mu.Unlock()
					q.Add(key)
				},
			}),
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Add:    func(p *corev1.Pod) { c.podChanged(endpointsliceutil.GetPodUpdateProjectionKey(nil, p)) },
				Update: func(o, n *corev1.Pod) { c.podChanged(endpointsliceutil.GetPodUpdateProjectionKey(o, n)) },
				Delete: func(p *corev1.Pod) { c.podChanged(endpointsliceutil.GetPodUpdateProjectionKey(p, nil)) },
			}),
			runtime.On(core.Endpoints().Informer(), runtime.Handlers[*corev1.Endpoints]{
				// Left over from a Service that was deleted while nobody looked.
				Add: func(e *corev1.Endpoints) {
					if e.Labels[managedByLabel] == managedBy {
						q.Add(e.Namespace + "/" + e.Name)
					}
				},
				Delete: func(e *corev1.Endpoints) { q.Add(e.Namespace + "/" + e.Name) },
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) podChanged(key *endpointsliceutil.PodProjectionKey) {
	if key == nil {
		return
	}
	services, err := endpointsliceutil.GetServicesToUpdate(c.services, key)
	if err != nil {
		return
	}
	for s := range services {
		c.queue.Add(s)
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	svc, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(namespace, name)
		return 0, c.serviceGone(ctx, key, namespace, name)
	}
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	delete(c.gone, key)
	c.mu.Unlock()
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil || svc.DeletionTimestamp != nil {
		return 0, nil
	}
	pods, err := c.pods.Pods(namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
	if err != nil {
		return 0, err
	}
	trigger := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, svc, pods)
	current, err := c.endpoints.Endpoints(namespace).Get(name)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if !exists {
		current = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	want := c.wanted(svc, pods, current, trigger)
	if exists && equality.Semantic.DeepEqual(current.Subsets, want.Subsets) && maps.Equal(current.Labels, want.Labels) &&
		current.Annotations[corev1.EndpointsOverCapacity] == want.Annotations[corev1.EndpointsOverCapacity] {
		return 0, nil
	}
	api := c.client.CoreV1().Endpoints(namespace)
	if exists {
		_, err = api.Update(ctx, want, metav1.UpdateOptions{})
	} else {
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
	}
	switch {
	case err == nil, !exists && runtime.NamespaceEnding(err):
		return 0, nil
	case !exists && apierrors.IsAlreadyExists(err), exists && apierrors.IsNotFound(err):
		return 0, runtime.Silent(fmt.Errorf("the cache is behind on endpoints %s: %w", key, err))
	}
	return 0, fmt.Errorf("write endpoints %s: %w", key, err)
}

func (c *controller) wanted(svc *corev1.Service, pods []*corev1.Pod, current *corev1.Endpoints, trigger time.Time) *corev1.Endpoints {
	want := current.DeepCopy()
	want.Subsets = subsets(svc, pods)
	cut := truncate(want.Subsets)
	want.Subsets = slices.DeleteFunc(want.Subsets, func(s corev1.EndpointSubset) bool {
		return len(s.Addresses)+len(s.NotReadyAddresses) == 0
	})
	want.Labels = maps.Clone(svc.Labels)
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[managedByLabel] = managedBy
	delete(want.Labels, corev1.IsHeadlessService)
	if svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" {
		want.Labels[corev1.IsHeadlessService] = ""
	}
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	delete(want.Annotations, corev1.EndpointsLastChangeTriggerTime)
	if !trigger.IsZero() {
		want.Annotations[corev1.EndpointsLastChangeTriggerTime] = trigger.UTC().Format(time.RFC3339Nano)
	}
	delete(want.Annotations, corev1.EndpointsOverCapacity)
	if cut {
		want.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	}
	return want
}

// serviceGone deletes the Endpoints of a Service that was seen deleted, and
// those of ours that were left behind. Others without a Service are somebody's
// own.
func (c *controller) serviceGone(ctx context.Context, key, namespace, name string) error {
	c.mu.Lock()
	seen := c.gone[key]
	c.mu.Unlock()
	e, err := c.endpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && (seen || e.Labels[managedByLabel] == managedBy) {
		err := c.client.CoreV1().Endpoints(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete endpoints %s: %w", key, err)
		}
	}
	c.mu.Lock()
	delete(c.gone, key)
	c.mu.Unlock()
	return nil
}
