package nodettl

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// steps overlap: one is left for the next above max, and for the one before
// below min.
var steps = []struct{ min, max, seconds int }{
	{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, math.MaxInt, 300},
}

// roundKey looks at all nodes. A node's own key is its name, which has no space.
const roundKey = "all nodes"

type controller struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	queue  runtime.Queue
	// step is used by Reconcile only, and that not twice at once: one worker.
	step int
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	nodes := d.Informers.Core().V1().Nodes()
	c := &controller{client: d.Client, nodes: nodes.Lister(), queue: q}
	round := func(*corev1.Node) { q.Add(roundKey) }
	return runtime.Controller{
		Workers: 1, // for step
		Sources: []runtime.Source{runtime.On(nodes.Informer(), runtime.Handlers[*corev1.Node]{
			Add: round, Delete: round,
			Update: func(o, n *corev1.Node) {
				if o.Annotations[corev1.ObjectTTLAnnotationKey] != n.Annotations[corev1.ObjectTTLAnnotationKey] {
					q.Add(n.Name)
				}
			},
		})},
		Reconcile: c.reconcile,
	}, nil
}

// stepFor returns the step for n nodes, coming from step.
func stepFor(n, step int) int {
	for n > steps[step].max {
		step++
	}
	for n < steps[step].min {
		step--
	}
	return step
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	c.step = stepFor(len(all), c.step)
	want := strconv.Itoa(steps[c.step].seconds)
	if key == roundKey {
		for _, n := range all {
			if n.Annotations[corev1.ObjectTTLAnnotationKey] != want {
				c.queue.Add(n.Name)
			}
		}
		return 0, nil
	}
	n, err := c.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || n.Annotations[corev1.ObjectTTLAnnotationKey] == want {
		return 0, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{corev1.ObjectTTLAnnotationKey: want}}})
	if err != nil {
		return 0, err
	}
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, key, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("annotate node %s: %w", key, err)
	}
	return 0, nil
}
