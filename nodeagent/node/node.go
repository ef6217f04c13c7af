// Package node keeps the Node object of a host: it registers it, tells what
// the host has and how it is, and renews the Lease that says it is alive.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	internalapi "k8s.io/cri-api/pkg/apis"
)

// Version is the Kubernetes version whose behaviour this node has; the build
// may set it.
var Version = "v1.37.2"

const (
	statusEvery  = 10 * time.Second // how often the host is looked at
	tellEvery    = 5 * time.Minute  // how often an unchanged status is told
	callTimeout  = 10 * time.Second
	registerMost = 7 * time.Second // longest pause between tries to register
)

// Config of a Manager.
type Config struct {
	Name       string
	Client     kubernetes.Interface
	IPs        func() []netip.Addr
	Capacity   v1.ResourceList // overrides
	Reserved   v1.ResourceList
	Labels     map[string]string
	Taints     []v1.Taint
	MaxPods    int
	DaemonPort int32
	RootDir    string // its file system is the node's ephemeral storage
	Runtime    interface {
		internalapi.RuntimeService
		internalapi.ImageManagerService
	}
	// Health returns why pods cannot run, nil when they can; Network likewise.
	Health  func() error
	Network func() error
	Log     *slog.Logger
}

// Manager keeps one Node object.
type Manager struct {
	cfg      Config
	capacity v1.ResourceList

	mu   sync.Mutex
	node *v1.Node // as the API last told
	told time.Time
	ref  *metav1.OwnerReference
	kick chan struct{}
}

// New measures the host and makes a Manager.
func New(cfg Config) (*Manager, error) {
	c, err := measure(cfg.RootDir, cfg.MaxPods)
	if err != nil {
		return nil, fmt.Errorf("capacity of this host: %w", err)
	}
	maps.Copy(c, cfg.Capacity)
	return &Manager{cfg: cfg, capacity: c, kick: make(chan struct{}, 1)}, nil
}

// Capacity of the node, with overrides. It must not be changed.
func (m *Manager) Capacity() v1.ResourceList { return m.capacity }

// Allocatable is capacity without what is reserved.
func (m *Manager) Allocatable() v1.ResourceList {
	out := m.capacity.DeepCopy()
	for name, r := range m.cfg.Reserved {
		q, ok := out[name]
		if !ok {
			continue
		}
		q.Sub(r)
		if q.Sign() < 0 {
			q.Set(0)
		}
		out[name] = q
	}
	return out
}

// Node is the object as the API last told it, or as it will be registered.
func (m *Manager) Node() *v1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != nil {
		return m.node
	}
	n := m.wanted()
	n.Status.Capacity, n.Status.Allocatable = m.capacity, m.Allocatable()
	return n
}

// Told takes the Node as a watch tells it.
func (m *Manager) Told(n *v1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = n
}

// Kick makes the status be looked at now.
func (m *Manager) Kick() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// Ref is the object events about the node are attached to.
func (m *Manager) Ref() *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: m.cfg.Name, UID: types.UID(m.cfg.Name)}
}

// Run registers the node and keeps its status and Lease until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	pause := 200 * time.Millisecond
	for {
		err := m.register(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		m.cfg.Log.Warn("node not registered, will try again", "node", m.cfg.Name, "err", err)
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, registerMost)
	}
	m.cfg.Log.Info("node registered", "node", m.cfg.Name)
	var wg sync.WaitGroup
	wg.Go(func() { m.renewLease(ctx) })
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		if err := m.update(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("node status not told, will try again", "node", m.cfg.Name, "err", err)
		}
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-tick.C:
		case <-m.kick:
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// wanted is the object with the labels this node puts on itself.
func (m *Manager) wanted() *v1.Node {
	labels := map[string]string{
		v1.LabelHostname:          m.cfg.Name,
		v1.LabelOSStable:          runtime.GOOS,
		v1.LabelArchStable:        runtime.GOARCH,
		"beta.kubernetes.io/os":   runtime.GOOS,
		"beta.kubernetes.io/arch": runtime.GOARCH,
	}
	maps.Copy(labels, m.cfg.Labels)
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.cfg.Name, Labels: labels}, Spec: v1.NodeSpec{Taints: m.cfg.Taints}}
}

// register makes the Node, or takes over the one that is there: its taints
// and foreign labels stay.
func (m *Manager) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes := m.cfg.Client.CoreV1().Nodes()
	want := m.wanted()
	m.status(ctx, want)
	got, err := nodes.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.IsForbidden(err) {
		refused := err
		var cur *v1.Node
		if cur, err = nodes.Get(ctx, m.cfg.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("register node %s: %w", m.cfg.Name, errors.Join(refused, err))
		}
		missing := map[string]string{}
		for k, v := range want.Labels {
			if cur.Labels[k] != v {
				missing[k] = v
			}
		}
		got = cur
		if len(missing) > 0 {
			patch, merr := json.Marshal(map[string]any{"metadata": map[string]any{"labels": missing}})
			if merr != nil {
				return merr
			}
			if got, err = nodes.Patch(ctx, m.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return fmt.Errorf("label node %s: %w", m.cfg.Name, err)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("register node %s: %w", m.cfg.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node = got
	m.ref = &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: got.Name, UID: got.UID}
	return nil
}

// update tells the node's status when it changed, or when it is time.
func (m *Manager) update(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	m.mu.Lock()
	base, told := m.node, m.told
	m.mu.Unlock()
	want := base.DeepCopy()
	m.status(ctx, want)
	if same(base, want) && time.Since(told) < tellEvery {
		return nil
	}
	a, err := json.Marshal(&v1.Node{Status: base.Status})
	if err != nil {
		return err
	}
	b, err := json.Marshal(&v1.Node{Status: want.Status})
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(a, b, v1.Node{})
	if err != nil {
		return fmt.Errorf("status of node %s: %w", m.cfg.Name, err)
	}
	if patch, err = replaceAddresses(patch, want.Status.Addresses); err != nil {
		return err
	}
	got, err := m.cfg.Client.CoreV1().Nodes().Patch(ctx, m.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return m.register(ctx) // deleted while we run: an operator who means it drains and stops noded first
	}
	if err != nil {
		return fmt.Errorf("status of node %s: %w", m.cfg.Name, err)
	}
	m.mu.Lock()
	m.node, m.told = got, time.Now()
	m.mu.Unlock()
	return nil
}

// replaceAddresses makes a patch set the whole list of addresses: its merge
// key is the type, and a node may have two of one type.
func replaceAddresses(patch []byte, addrs []v1.NodeAddress) ([]byte, error) {
	var p map[string]any
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	st, ok := p["status"].(map[string]any)
	if !ok {
		return patch, nil
	}
	if _, changed := st["addresses"]; !changed {
		return patch, nil
	}
	delete(st, "$setElementOrder/addresses")
	list := []any{map[string]any{"$patch": "replace"}}
	for _, a := range addrs {
		list = append(list, a)
	}
	st["addresses"] = list
	return json.Marshal(p)
}

// same compares two nodes' status but for heartbeats.
func same(a, b *v1.Node) bool {
	x, y := a.Status.DeepCopy(), b.Status.DeepCopy()
	for _, s := range []*v1.NodeStatus{x, y} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return apiequality.Semantic.DeepEqual(x, y) && reflect.DeepEqual(a.Labels, b.Labels)
}
