package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

type controller struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   runtime.PodIndex
	events record.EventRecorder
	clock  clock.PassiveClock
	log    *slog.Logger
	queue  runtime.Queue
	grace  time.Duration
	pulse  *pulse

	mu        sync.Mutex
	evictedAt map[string]time.Time // zone to when a node of it last got a NoExecute taint
	allDown   bool
}

// New builds the controller. A node that has been silent for grace counts as
// lost.
func New(d runtime.Deps, q runtime.Queue, grace time.Duration) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	index, err := runtime.NewPodIndex(core.Pods().Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	c := &controller{
		client: d.Client, nodes: core.Nodes().Lister(), pods: index, events: d.Recorder, clock: d.Clock, log: d.Log,
		queue: q, grace: grace, pulse: newPulse(d.Clock), evictedAt: map[string]time.Time{},
	}
	leases := coordinationinformers.NewLeaseInformer(d.Client, corev1.NamespaceNodeLease, 0, cache.Indexers{})
	return runtime.Controller{
		Workers: 8,
		Private: []cache.SharedInformer{leases},
		Sources: []runtime.Source{
			runtime.On(core.Nodes().Informer(), runtime.Handlers[*corev1.Node]{
				Add: func(n *corev1.Node) {
					c.pulse.node(n)
					c.surveyed()
					q.Add(n.Name)
				},
				Update: func(o, n *corev1.Node) {
					c.pulse.node(n)
					if readiness(o) != readiness(n) || zoneOf(o) != zoneOf(n) {
						c.surveyed()
					}
					q.Add(n.Name)
				},
				Delete: func(n *corev1.Node) {
					c.pulse.forget(n.Name)
					c.surveyed()
				},
			}),
			// A renewal changes nothing but the time to look next, and there are
			// many: the queue is told only when the node may come back to life.
			runtime.Each(leases, func(l *coordinationv1.Lease) {
				if c.pulse.lease(l) {
					if n, err := c.nodes.Get(l.Name); err == nil && readiness(n) != corev1.ConditionTrue {
						q.Add(l.Name)
					}
				}
			}),
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Update: func(_, p *corev1.Pod) { c.podChanged(p) },
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

// podChanged wakes the node of a pod that is ready though its node is lost.
func (c *controller) podChanged(p *corev1.Pod) {
	if p.Spec.NodeName == "" || !podstate.Ready(p) {
		return
	}
	if n, err := c.nodes.Get(p.Spec.NodeName); err == nil && readiness(n) == corev1.ConditionUnknown {
		c.queue.Add(n.Name)
	}
}

// surveyed looks whether all zones are down, and on a change of that has every
// node reconciled.
func (c *controller) surveyed() {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	_, allDown := survey(nodes)
	c.mu.Lock()
	changed := allDown != c.allDown
	c.allDown = allDown
	c.mu.Unlock()
	if !changed {
		return
	}
	if allDown {
		c.log.Warn("no node of any zone is ready: evictions are suspended", "nodes", len(nodes))
	} else {
		c.log.Info("nodes are ready again: evictions are resumed", "nodes", len(nodes))
		c.pulse.refresh()
	}
	for _, n := range nodes {
		c.queue.Add(n.Name)
	}
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		c.pulse.forget(name)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	next, err := c.watchSilence(ctx, &node)
	if err != nil {
		return 0, err
	}
	wait, err := c.taint(ctx, node)
	if err != nil {
		return 0, err
	}
	if wait > 0 {
		next = min(next, wait)
	}
	if readiness(node) != corev1.ConditionTrue {
		err = c.markPods(ctx, node)
	}
	return next, err
}

// watchSilence writes the Unknown conditions once the node has been silent for
// too long, and returns when to look again. It replaces *node by what it wrote.
func (c *controller) watchSilence(ctx context.Context, node **corev1.Node) (time.Duration, error) {
	n := *node
	grace := c.grace
	if condition(n.Status.Conditions, corev1.NodeReady) == nil {
		grace = max(grace, startupGrace)
	}
	if left := grace - c.pulse.silence(n.Name); left > 0 {
		return left + 10*time.Millisecond, nil
	}
	conditions, changed := silenced(n, c.clock.Now())
	if !changed {
		return grace, nil
	}
	lease, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		if c.pulse.lease(lease) {
			return grace, nil
		}
	case !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("read lease of node %s: %w", n.Name, err)
	}
	want := n.DeepCopy()
	want.Status.Conditions = conditions
	got, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, want, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return grace, nil
	}
	if err != nil {
		return 0, fmt.Errorf("write that node %s is silent: %w", n.Name, err)
	}
	c.log.Warn("node is lost", "node", n.Name, "silent", c.pulse.silence(n.Name).Round(time.Second))
	c.events.Eventf(nodeRef(n), corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", n.Name)
	*node = got
	return grace, nil
}

// nodeRef refers to a node as kubectl describe looks for its events: by name.
func nodeRef(n *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.Name)}
}

// taint brings the node's taints in line with its conditions. A positive
// duration asks to try again, for a NoExecute taint had to wait.
func (c *controller) taint(ctx context.Context, n *corev1.Node) (time.Duration, error) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	zones, _ := survey(all)
	c.mu.Lock()
	suspended := c.allDown
	c.mu.Unlock()
	var wait time.Duration
	list, changed, needed := taints(n, func() bool {
		wait = c.turn(zoneOf(n), zones[zoneOf(n)])
		return wait == 0
	}, suspended, c.clock.Now())
	if changed {
		patch, err := json.Marshal(map[string]any{
			// Taints are replaced as a whole: not over what was not seen.
			"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
			"spec":     map[string]any{"taints": list},
		})
		if err != nil {
			return 0, err
		}
		_, err = c.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("write taints of node %s: %w", n.Name, err)
		}
	}
	if !needed {
		return 0, nil
	}
	return wait, nil
}

// turn returns 0 when a node of the zone may get a NoExecute taint now, and
// takes the turn; otherwise how long to wait.
func (c *controller) turn(zone string, z zoneState) time.Duration {
	interval := z.interval()
	if interval == 0 {
		return evictionInterval // look whether the zone is better then
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if last, ok := c.evictedAt[zone]; ok && now.Sub(last) < interval {
		return interval - now.Sub(last)
	}
	c.evictedAt[zone] = now
	return 0
}

// markPods makes the node's pods not ready. On a lost node it does so always; on
// one that is alive but not ready once, for it may report its pods ready again.
func (c *controller) markPods(ctx context.Context, n *corev1.Node) error {
	ready := condition(n.Status.Conditions, corev1.NodeReady)
	if ready == nil {
		return nil
	}
	if ready.Status == corev1.ConditionFalse {
		if last := c.pulse.marked(n.Name); last.Equal(&ready.LastTransitionTime) {
			return nil
		}
	}
	pods := c.pods.OnNode(n.Name)
	errs := make([]error, len(pods))
	runtime.Parallel(len(pods), 16, func(i int) { errs[i] = c.markPod(ctx, pods[i]) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.pulse.setMarked(n.Name, ready.LastTransitionTime)
	return nil
}

func (c *controller) markPod(ctx context.Context, pod *corev1.Pod) error {
	if !podstate.Ready(pod) {
		return nil
	}
	now := metav1.NewTime(c.clock.Now())
	there, err := runtime.SetPodCondition(ctx, c.client, pod, corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: now,
	})
	if err != nil || !there {
		return err // another pod of the name has a key of its own
	}
	c.events.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	return nil
}
