package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// retryFull is how often a node without a block asks again.
const retryFull = time.Minute

type controller struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	events record.EventRecorder
	log    *slog.Logger

	mu     sync.Mutex
	pool   *pool
	filled bool // pool holds what the API server had
}

// New builds the controller. Each node gets a block of network with a prefix of
// that many bits.
func New(d runtime.Deps, q runtime.Queue, network netip.Prefix, bits int) (runtime.Controller, error) {
	p, err := newPool(network, bits)
	if err != nil {
		return runtime.Controller{}, err
	}
	nodes := d.Informers.Core().V1().Nodes()
	c := &controller{client: d.Client, nodes: nodes.Lister(), events: d.Recorder, log: d.Log, pool: p}
	return runtime.Controller{
		Sources: []runtime.Source{runtime.On(nodes.Informer(), runtime.Handlers[*corev1.Node]{
			Add: func(n *corev1.Node) { q.Add(n.Name) },
			Update: func(o, n *corev1.Node) {
				if n.Spec.PodCIDR == "" || o.Spec.PodCIDR != n.Spec.PodCIDR || o.UID != n.UID {
					q.Add(n.Name)
				}
			},
			Delete: func(n *corev1.Node) { q.Add(n.Name) },
		})},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	if err := c.fill(ctx); err != nil {
		return 0, err
	}
	node, err := c.nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		c.mu.Lock()
		c.pool.release(name)
		c.mu.Unlock()
		return 0, nil
	case err != nil:
		return 0, err
	case node.Spec.PodCIDR != "":
		c.mu.Lock()
		err := occupy(c.pool, node)
		c.mu.Unlock()
		if err != nil {
			c.events.Event(node, corev1.EventTypeWarning, "CIDRConflict", err.Error())
			c.log.Error("two nodes have one pod network block", "node", name, "err", err)
		}
		return 0, nil
	case node.DeletionTimestamp != nil:
		return 0, nil
	}
	c.mu.Lock()
	block, err := c.pool.take(name)
	c.mu.Unlock()
	if errors.Is(err, errFull) {
		c.events.Event(node, corev1.EventTypeWarning, "CIDRNotAvailable", err.Error())
		c.log.Error("node gets no pod network", "node", name, "err", err)
		return retryFull, nil
	}
	return 0, c.assign(ctx, node, block)
}

// fill reads the blocks in use from the API server once.
func (c *controller) fill(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filled {
		return nil
	}
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("read pod network blocks in use: %w", err)
	}
	for i := range list.Items {
		if err := occupy(c.pool, &list.Items[i]); err != nil {
			c.log.Error("two nodes have one pod network block", "node", list.Items[i].Name, "err", err)
		}
	}
	c.filled = true
	return nil
}

// occupy notes all blocks that node has.
func occupy(p *pool, node *corev1.Node) error {
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	for _, s := range cidrs {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("pod network block %q of node %s: %w", s, node.Name, err)
		}
		if err := p.occupy(node.Name, prefix); err != nil {
			return err
		}
	}
	return nil
}

// assign writes the block. Whatever the outcome it stays reserved for the node:
// a failed request may have been carried out.
func (c *controller) assign(ctx context.Context, node *corev1.Node, block netip.Prefix) error {
	patch, err := json.Marshal(map[string]any{
		// Not onto another node of the same name.
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": block.String(), "podCIDRs": []string{block.String()}},
	})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give node %s the pod network block %s: %w", node.Name, block, err)
	}
	c.log.Info("node has a pod network block", "node", node.Name, "cidr", block.String())
	return nil
}
