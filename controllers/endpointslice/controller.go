package endpointslice

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/record"
	library "k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const (
	// managedBy is the value of the label endpointslice.kubernetes.io/managed-by,
	// the one that other software knows.
	managedBy = "endpointslice-controller.k8s.io"
	// maxPerSlice and settle are upstream's values.
	maxPerSlice = 100
	settle      = time.Second
	// topologyKey is the queue key for "nodes have changed"; no Service has it.
	topologyKey = "nodes"
)

type controller struct {
	services   corelisters.ServiceLister
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	slices     discoverylisters.EndpointSliceLister
	events     record.EventRecorder
	reconciler *library.Reconciler
	tracker    *endpointsliceutil.EndpointSliceTracker
	triggers   *endpointsliceutil.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	queue      runtime.Queue
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core, discovery := d.Informers.Core().V1(), d.Informers.Discovery().V1()
	c := &controller{
		services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(),
		slices: discovery.EndpointSlices().Lister(), events: d.Recorder,
		tracker:  endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
		topology: topologycache.NewTopologyCache(),
		queue:    q,
	}
	c.reconciler = library.NewReconciler(d.Client, c.nodes, maxPerSlice, c.tracker, c.topology, d.Recorder, managedBy,
		library.WithPreferSameTrafficDistributionEnabled(true))
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Own(q, core.Services().Informer()),
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Add:    func(p *corev1.Pod) { c.podChanged(endpointsliceutil.GetPodUpdateProjectionKey(nil, p)) },
				Update: func(o, n *corev1.Pod) { c.podChanged(endpointsliceutil.GetPodUpdateProjectionKey(o, n)) },
				Delete: func(p *corev1.Pod) { c.podChanged(endpointsliceutil.GetPodUpdateProjectionKey(p, nil)) },
			}),
			runtime.On(discovery.EndpointSlices().Informer(), runtime.Handlers[*discoveryv1.EndpointSlice]{
				Add: c.sliceAdded, Update: c.sliceUpdated, Delete: c.sliceDeleted,
			}),
			runtime.On(core.Nodes().Informer(), runtime.Handlers[*corev1.Node]{
				Add: func(*corev1.Node) { q.Add(topologyKey) },
				Update: func(o, n *corev1.Node) {
					if nodeReady(o) != nodeReady(n) || o.Labels[corev1.LabelTopologyZone] != n.Labels[corev1.LabelTopologyZone] {
						q.Add(topologyKey)
					}
				},
				Delete: func(*corev1.Node) { q.Add(topologyKey) },
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// podChanged queues the Services that select the pod, or did. key is nil when
// the change means nothing to any.
func (c *controller) podChanged(key *endpointsliceutil.PodProjectionKey) {
	if key == nil {
		return
	}
	services, err := endpointsliceutil.GetServicesToUpdate(c.services, key)
	if err != nil {
		return // the lister knows no errors
	}
	for s := range services {
		c.queue.Add(s)
	}
}

func (c *controller) sliceAdded(s *discoveryv1.EndpointSlice) {
	if c.reconciler.ManagedByController(s) && c.tracker.ShouldSync(s) {
		c.sliceChanged(s)
	}
}

func (c *controller) sliceUpdated(o, n *discoveryv1.EndpointSlice) {
	if o.Labels[discoveryv1.LabelServiceName] != n.Labels[discoveryv1.LabelServiceName] {
		c.sliceChanged(o)
		c.sliceChanged(n)
		return
	}
	if c.reconciler.ManagedByChanged(o, n) || (c.reconciler.ManagedByController(n) && c.tracker.ShouldSync(n)) {
		c.sliceChanged(n)
	}
}

func (c *controller) sliceDeleted(s *discoveryv1.EndpointSlice) {
	if c.reconciler.ManagedByController(s) && c.tracker.Has(s) && !c.tracker.HandleDeletion(s) {
		c.sliceChanged(s) // deleted by somebody else
	}
}

func (c *controller) sliceChanged(s *discoveryv1.EndpointSlice) {
	if key, err := library.ServiceControllerKey(s); err == nil {
		c.queue.AddAfter(key, settle)
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if key == topologyKey {
		return 0, c.nodesChanged()
	}
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	svc, err := c.services.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		// The garbage collector deletes the slices, which the Service owns.
		c.triggers.DeleteService(namespace, name)
		c.reconciler.DeleteService(namespace, name)
		c.tracker.DeleteService(namespace, name)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil || svc.DeletionTimestamp != nil {
		return 0, nil
	}
	pods, err := c.pods.Pods(namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
	if err != nil {
		return 0, err
	}
	existing, err := c.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: name,
		discoveryv1.LabelManagedBy:   managedBy,
	}))
	if err != nil {
		return 0, err
	}
	existing = slices.DeleteFunc(existing, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil })
	if c.tracker.StaleSlices(svc, existing) {
		return 0, runtime.Silent(fmt.Errorf("the cache does not show yet what was written for service %s", key))
	}
	trigger := c.triggers.ComputeEndpointLastChangeTriggerTime(namespace, svc, pods)
	// The library writes without our context; what bounds it is the deadline of
	// the client's own requests, and the tracker and resource versions make a
	// late write fail.
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err := c.reconciler.Reconcile(klog.FromContext(ctx), svc, pods, existing, trigger); err != nil {
		if runtime.NamespaceEnding(err) {
			return 0, nil
		}
		if !apierrors.IsConflict(err) {
			c.events.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service %s/%s: %v", namespace, name, err)
		}
		return 0, fmt.Errorf("update endpoint slices of service %s: %w", key, err)
	}
	return 0, nil
}

// nodesChanged renews what is known of zones and queues the Services whose
// topology hints no longer fit.
func (c *controller) nodesChanged() error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	c.topology.SetNodes(klog.Background(), nodes)
	for _, service := range c.topology.GetOverloadedServices() {
		c.queue.Add(service)
	}
	return nil
}
