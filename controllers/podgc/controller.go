package podgc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// Upstream's values.
const (
	period     = 20 * time.Second
	quarantine = 40 * time.Second // a missing node may just not be in the cache yet
)

// roundKey is the only queue key: a look at all pods.
const roundKey = "round"

type controller struct {
	client    kubernetes.Interface
	pods      corelisters.PodLister
	nodes     corelisters.NodeLister
	clock     clock.PassiveClock
	threshold int

	// missing is since when nodes with pods are missing. Only Reconcile uses it,
	// and that not twice at once.
	missing map[string]time.Time
}

// New builds the controller. Of ended pods threshold are kept; all if it is
// negative.
func New(d runtime.Deps, q runtime.Queue, threshold int) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{
		client: d.Client, pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), clock: d.Clock,
		threshold: threshold, missing: map[string]time.Time{},
	}
	q.Add(roundKey)
	return runtime.Controller{
		Workers: 1,
		Sources: []runtime.Source{
			runtime.Each(core.Pods().Informer(), func(p *corev1.Pod) {
				if p.DeletionTimestamp != nil && p.Spec.NodeName == "" {
					q.AddAfter(roundKey, time.Second)
				}
			}),
			runtime.On(core.Nodes().Informer(), runtime.Handlers[*corev1.Node]{
				Update: func(_, n *corev1.Node) {
					if outOfService(n) {
						q.AddAfter(roundKey, time.Second)
					}
				},
				Delete: func(*corev1.Node) {
					q.Add(roundKey) // the quarantine begins
					q.AddAfter(roundKey, quarantine+time.Second)
				},
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	list, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	nodes := make(map[string]*corev1.Node, len(list))
	for _, n := range list {
		nodes[n.Name] = n
		delete(c.missing, n.Name)
	}
	gone, err := c.goneNodes(ctx, pods, nodes)
	victims := plan(pods, nodes, func(node string) bool { return gone[node] }, c.threshold)
	errs := make([]error, len(victims), len(victims)+1)
	runtime.Parallel(len(victims), 16, func(i int) { errs[i] = c.delete(ctx, victims[i]) })
	if err := errors.Join(append(errs, err)...); err != nil {
		return 0, err
	}
	return period, nil
}

// goneNodes returns which of the nodes that pods name are gone for good.
func (c *controller) goneNodes(ctx context.Context, pods []*corev1.Pod, nodes map[string]*corev1.Node) (map[string]bool, error) {
	now := c.clock.Now()
	named := map[string]bool{}
	for _, p := range pods {
		if name := p.Spec.NodeName; name != "" && nodes[name] == nil {
			named[name] = true
			if _, ok := c.missing[name]; !ok {
				c.missing[name] = now
			}
		}
	}
	gone := map[string]bool{}
	for name, since := range c.missing {
		if !named[name] {
			delete(c.missing, name)
			continue
		}
		if now.Sub(since) < quarantine {
			continue
		}
		_, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			gone[name] = true
		case err != nil:
			return nil, fmt.Errorf("look up node %s: %w", name, err)
		}
	}
	return gone, nil
}

func (c *controller) delete(ctx context.Context, v victim) error {
	p := v.pod
	if v.why != "" && !podstate.Terminal(p) {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": p.UID},
			"status": map[string]any{
				"phase": corev1.PodFailed,
				"conditions": []corev1.PodCondition{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: v.why,
					LastTransitionTime: metav1.NewTime(c.clock.Now()), ObservedGeneration: p.Generation,
				}},
			},
		})
		if err != nil {
			return err
		}
		_, err = c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("mark pod %s/%s failed: %w", p.Namespace, p.Name, err)
		}
	}
	now := int64(0)
	err := c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
