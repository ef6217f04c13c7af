package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type runtimeFake struct {
	internalapi.RuntimeService
	internalapi.ImageManagerService
	mu  sync.Mutex
	err error
}

func (r *runtimeFake) failing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *runtimeFake) Close(context.Context) error { return nil }

func (r *runtimeFake) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "1.6.20"}, r.failing()
}

func (r *runtimeFake) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true}}}}, r.failing()
}

func (r *runtimeFake) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return []*runtimeapi.Image{{Id: "a", Size: 1, RepoTags: []string{"small:1"}}, {Id: "b", Size: 2, RepoTags: []string{"big:1"}}}, r.failing()
}

func manager(t *testing.T, c *fake.Clientset, rt *runtimeFake, network func() error) *Manager {
	t.Helper()
	m, err := New(Config{Name: "n1", Client: c, IPs: func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	},
		Capacity: v1.ResourceList{v1.ResourceCPU: resource.MustParse("8"), v1.ResourceMemory: resource.MustParse("4Gi")},
		Reserved: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("5Gi")},
		Labels:   map[string]string{"zone": "z1"}, Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}, MaxPods: 42, DaemonPort: 10250, RootDir: t.TempDir(),
		Runtime: rt, Network: network, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func run(t *testing.T, m *Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

// eventually looks at the Node until ok, kicking the manager.
func eventually(t *testing.T, m *Manager, c *fake.Clientset, what string, ok func(*v1.Node) bool) *v1.Node {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		n, err := c.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
		if err == nil && ok(n) {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("never %s: %+v", what, n)
		}
		m.Kick()
		<-time.After(5 * time.Millisecond)
	}
}

func ready(n *v1.Node) (v1.ConditionStatus, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status, c.Message
		}
	}
	return "", ""
}

func TestRegistersAndTells(t *testing.T) {
	c, rt := fake.NewClientset(), &runtimeFake{}
	m := manager(t, c, rt, nil)
	run(t, m)
	n := eventually(t, m, c, "ready", func(n *v1.Node) bool { s, _ := ready(n); return s == v1.ConditionTrue })
	cpu, mem, pods := n.Status.Allocatable[v1.ResourceCPU], n.Status.Allocatable[v1.ResourceMemory], n.Status.Capacity[v1.ResourcePods]
	if cpu.String() != "7500m" || mem.Sign() != 0 || pods.Value() != 42 {
		t.Errorf("allocatable cpu %s, memory %s, pods %s", cpu.String(), mem.String(), pods.String())
	}
	if n.Labels[v1.LabelHostname] != "n1" || n.Labels["zone"] != "z1" || len(n.Spec.Taints) != 1 {
		t.Errorf("labels %v taints %v", n.Labels, n.Spec.Taints)
	}
	if len(n.Status.Addresses) != 3 || n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://1.6.20" || n.Status.NodeInfo.KernelVersion == "" || n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Errorf("status %+v", n.Status)
	}
	if len(n.Status.Images) != 2 || n.Status.Images[0].Names[0] != "big:1" {
		t.Errorf("images %+v", n.Status.Images)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		l, err := c.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(context.Background(), "n1", metav1.GetOptions{})
		if err == nil {
			if *l.Spec.HolderIdentity != "n1" || *l.Spec.LeaseDurationSeconds != 40 || l.Spec.RenewTime == nil {
				t.Errorf("lease %+v", l.Spec)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no lease")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestNotReadySaysWhy(t *testing.T) {
	c, rt := fake.NewClientset(), &runtimeFake{}
	var mu sync.Mutex
	network := errors.New("no pod CIDR yet")
	m := manager(t, c, rt, func() error { mu.Lock(); defer mu.Unlock(); return network })
	run(t, m)
	eventually(t, m, c, "unready for the network", func(n *v1.Node) bool {
		s, msg := ready(n)
		return s == v1.ConditionFalse && msg == "pod network not ready: no pod CIDR yet"
	})
	mu.Lock()
	network = nil
	mu.Unlock()
	eventually(t, m, c, "ready", func(n *v1.Node) bool { s, _ := ready(n); return s == v1.ConditionTrue })
	rt.mu.Lock()
	rt.err = errors.New("connection refused")
	rt.mu.Unlock()
	n := eventually(t, m, c, "unready for the runtime", func(n *v1.Node) bool { s, _ := ready(n); return s == v1.ConditionFalse })
	if n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://1.6.20" || len(n.Status.Images) != 2 {
		t.Error("what was known of the runtime is forgotten while it is down")
	}
}

func TestTakesOverTheNodeThatIsThere(t *testing.T) {
	before := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"mine": "yes", "zone": "old"}},
		Spec:   v1.NodeSpec{PodCIDR: "10.244.3.0/24", Taints: []v1.Taint{{Key: "operator", Effect: v1.TaintEffectNoSchedule}}},
		Status: v1.NodeStatus{Capacity: v1.ResourceList{"example.com/gpu": resource.MustParse("2")}}}
	c, rt := fake.NewClientset(before), &runtimeFake{}
	m := manager(t, c, rt, nil)
	run(t, m)
	n := eventually(t, m, c, "ready", func(n *v1.Node) bool { s, _ := ready(n); return s == v1.ConditionTrue })
	gpu := n.Status.Allocatable["example.com/gpu"]
	if n.Labels["mine"] != "yes" || n.Labels["zone"] != "z1" || n.Spec.PodCIDR == "" || len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "operator" || gpu.Value() != 2 {
		t.Errorf("node after: labels %v, spec %+v, allocatable %v", n.Labels, n.Spec, n.Status.Allocatable)
	}
}

func TestADeletedNodeIsRegisteredAgain(t *testing.T) {
	c, rt := fake.NewClientset(), &runtimeFake{}
	m := manager(t, c, rt, nil)
	run(t, m)
	eventually(t, m, c, "ready", func(n *v1.Node) bool { s, _ := ready(n); return s == v1.ConditionTrue })
	if err := c.CoreV1().Nodes().Delete(context.Background(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rt.mu.Lock()
	rt.err = errors.New("down") // a change that must be told
	rt.mu.Unlock()
	eventually(t, m, c, "back", func(*v1.Node) bool { return true })
}
