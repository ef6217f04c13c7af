package tainteviction

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

type controller struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	nodes  corelisters.NodeLister
	events record.EventRecorder
	clock  clock.PassiveClock

	mu   sync.Mutex
	seen map[seenTaint]time.Time
}

// seenTaint is a taint that does not say since when it is.
type seenTaint struct{ node, key, value string }

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	index, err := runtime.NewPodIndex(core.Pods().Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	c := &controller{
		client: d.Client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), events: d.Recorder, clock: d.Clock,
		seen: map[seenTaint]time.Time{},
	}
	onNode := func(n *corev1.Node) {
		for _, p := range index.OnNode(n.Name) {
			q.Add(p.Namespace + "/" + p.Name)
		}
	}
	return runtime.Controller{
		Workers: 8,
		Sources: []runtime.Source{
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Add: func(p *corev1.Pod) { q.Add(p.Namespace + "/" + p.Name) },
				Update: func(o, n *corev1.Pod) {
					if o.Spec.NodeName != n.Spec.NodeName || len(o.Spec.Tolerations) != len(n.Spec.Tolerations) {
						q.Add(n.Namespace + "/" + n.Name)
					}
				},
			}),
			runtime.On(core.Nodes().Informer(), runtime.Handlers[*corev1.Node]{
				Add: func(n *corev1.Node) {
					if len(noExecute(n)) > 0 {
						onNode(n)
					}
				},
				Update: func(o, n *corev1.Node) {
					if !slices.EqualFunc(noExecute(o), noExecute(n), func(a, b corev1.Taint) bool {
						return a.Key == b.Key && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
					}) {
						c.forget(n)
						onNode(n)
					}
				},
				Delete: func(n *corev1.Node) { c.forget(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}) },
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func noExecute(n *corev1.Node) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectNoExecute })
}

// since returns when a taint without a time was first seen.
func (c *controller) since(node string) func(*corev1.Taint) time.Time {
	return func(t *corev1.Taint) time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		k := seenTaint{node, t.Key, t.Value}
		if _, ok := c.seen[k]; !ok {
			c.seen[k] = c.clock.Now()
		}
		return c.seen[k]
	}
}

// forget drops what was seen of taints that the node has no longer.
func (c *controller) forget(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.seen {
		if k.node == n.Name && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoExecute && t.Key == k.key && t.Value == k.value
		}) {
			delete(c.seen, k)
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) || (err == nil && (pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil)) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return 0, nil // pod garbage collection's
	}
	if err != nil {
		return 0, err
	}
	now := c.clock.Now()
	what, at := judge(pod, node.Spec.Taints, c.since(node.Name), now)
	switch what {
	case wait:
		return at.Sub(now), nil
	case evict:
		return 0, c.evict(ctx, pod)
	}
	return 0, nil
}

func (c *controller) evict(ctx context.Context, pod *corev1.Pod) error {
	if !podstate.Terminal(pod) {
		there, err := runtime.SetPodCondition(ctx, c.client, pod, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
			Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(c.clock.Now()),
		})
		if err != nil || !there {
			return err // another pod of the name has a key of its own
		}
	}
	c.events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", pod.Namespace, pod.Name)
	err := c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
