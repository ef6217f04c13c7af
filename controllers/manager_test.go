package controllers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	discoveryfake "k8s.io/client-go/discovery/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/util/retry"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

// cluster is a whole cluster: a fake API server, all controllers, and nodes that
// run every pod they are given.
type cluster struct {
	*runtimetest.Cluster
	manager *Manager

	mu   sync.Mutex
	dead map[string]bool
}

// newCluster starts a cluster whose nodes count as lost after grace.
func newCluster(t *testing.T, grace time.Duration, nodes ...string) *cluster {
	t.Helper()
	c := &cluster{Cluster: runtimetest.New(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
	), dead: map[string]bool{}}
	key, caPEM := newCA(t)
	var err error
	c.manager, err = New(Config{
		Client:                 c.Clientset,
		Metadata:               metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()),
		Discovery:              c.Discovery().(*discoveryfake.FakeDiscovery),
		Informers:              c.Informers,
		Signer:                 key,
		CACert:                 caPEM,
		ClusterCIDR:            netip.MustParsePrefix("10.244.0.0/16"),
		NodeMonitorGracePeriod: grace,
		Recorder:               c.Events,
		Log:                    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if _, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.manager.Run(ctx) }()
	var wg sync.WaitGroup
	defer func() {
		runtimetest.Eventually(t, func() string {
			return runtimetest.Watching(c.Actions()) + runtimetest.Unhealthy(c.manager.Health())
		})
		c.ClearActions() // they are many
		wg.Go(func() { c.nodes(ctx, nodes) })
	}()
	t.Cleanup(func() {
		for _, s := range c.manager.Health() {
			if s.Restarts > 0 {
				t.Errorf("controller %s failed: %s", s.Name, s.LastError)
			}
		}
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(runtimetest.Timeout):
			t.Error("Run did not return")
		}
		wg.Wait()
		c.Informers.Shutdown()
	})
	return c
}

func newCA(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// nodes stands for kubelets and scheduler: it reports live nodes, binds pods to
// them in turn, starts them, and ends those that are being deleted.
func (c *cluster) nodes(ctx context.Context, names []string) {
	turn := 0
	for round := 0; ctx.Err() == nil; round++ {
		var live []string
		for _, n := range names {
			c.mu.Lock()
			dead := c.dead[n]
			c.mu.Unlock()
			if !dead {
				c.beat(ctx, n)
				live = append(live, n)
			}
		}
		pods, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Spec.NodeName == "" && len(live) > 0 {
				turn++
				p.Spec.NodeName = live[turn%len(live)]
				_, _ = c.CoreV1().Pods(p.Namespace).Update(ctx, p, metav1.UpdateOptions{})
				continue
			}
			c.mu.Lock()
			dead := c.dead[p.Spec.NodeName]
			c.mu.Unlock()
			if dead || podstate.Ready(p) || p.DeletionTimestamp != nil {
				continue
			}
			p.Status.Phase = corev1.PodRunning
			p.Status.PodIP = fmt.Sprintf("10.244.%d.%d", turn/250, i+1)
			p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			_, _ = c.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *cluster) beat(ctx context.Context, name string) {
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	leases := c.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		_, _ = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	n, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
			return
		}
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	_, _ = c.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
}

func (c *cluster) kill(node string, dead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead[node] = dead
}

func web(replicas int32, image string) *appsv1.Deployment {
	l := map[string]string{"app": "web"}
	one, zero := intstr.FromInt(1), intstr.FromInt(0)
	seconds := int64(1)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: l},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &zero}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "c", Image: image, Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
					Tolerations: []corev1.Toleration{
						{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds},
					},
				},
			},
		},
	}
}

// webPods returns the pods by image, and the addresses that the Service has as
// ready.
func (c *cluster) webPods(t *testing.T) (byImage map[string]int, ready int, nodes map[string]int) {
	t.Helper()
	pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	byImage, nodes = map[string]int{}, map[string]int{}
	for _, p := range pods.Items {
		byImage[p.Spec.Containers[0].Image]++
		nodes[p.Spec.NodeName]++
	}
	slices, err := c.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: labels.Set{"kubernetes.io/service-name": "web"}.String()})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready++
			}
		}
	}
	return byImage, ready, nodes
}

func (c *cluster) waitWeb(t *testing.T, image string, n int) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		byImage, ready, _ := c.webPods(t)
		if len(byImage) != 1 || byImage[image] != n || ready != n {
			return fmt.Sprintf("pods %v, %d ready endpoints; want %d of %s", byImage, ready, n, image)
		}
		return ""
	})
}

func (c *cluster) edit(t *testing.T, f func(*appsv1.Deployment)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		d, err := c.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(d)
		_, err = c.AppsV1().Deployments("default").Update(t.Context(), d, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestApplicationThroughItsLife(t *testing.T) {
	c := newCluster(t, time.Hour, "n1", "n2", "n3")
	ctx := t.Context()

	runtimetest.Eventually(t, func() string {
		if _, err := c.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if _, err := c.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		blocks := map[string]bool{}
		for _, n := range []string{"n1", "n2", "n3"} {
			node, err := c.CoreV1().Nodes().Get(ctx, n, metav1.GetOptions{})
			if err != nil || node.Spec.PodCIDR == "" {
				return fmt.Sprintf("node %s has no pod network block: %v", n, err)
			}
			blocks[node.Spec.PodCIDR] = true
		}
		if len(blocks) != 3 {
			return fmt.Sprint("blocks are not one per node: ", blocks)
		}
		return ""
	})

	if _, err := c.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", Selector: map[string]string{"app": "web"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(80), Protocol: corev1.ProtocolTCP}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AppsV1().Deployments("default").Create(ctx, web(3, "v1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitWeb(t, "v1", 3)

	c.edit(t, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "v2" })
	c.waitWeb(t, "v2", 3)
	c.edit(t, func(d *appsv1.Deployment) { *d.Spec.Replicas = 10 })
	c.waitWeb(t, "v2", 10)
	c.edit(t, func(d *appsv1.Deployment) { *d.Spec.Replicas = 2 })
	c.waitWeb(t, "v2", 2)
	c.edit(t, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "v1" }) // undo
	c.waitWeb(t, "v1", 2)

	runtimetest.Eventually(t, func() string {
		d, err := c.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if d.Annotations["deployment.kubernetes.io/revision"] != "3" || d.Status.AvailableReplicas != 2 {
			return fmt.Sprintf("revision %q, status %+v", d.Annotations["deployment.kubernetes.io/revision"], d.Status)
		}
		e, err := c.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil || len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != 2 {
			return fmt.Sprintf("endpoints %+v, %v", e, err)
		}
		return ""
	})
}

func TestPodsOfALostNodeAreReplaced(t *testing.T) {
	c := newCluster(t, 5*time.Second, "n1", "n2", "n3")
	if _, err := c.AppsV1().Deployments("default").Create(t.Context(), web(6, "v1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settled := func(want func(nodes map[string]int) bool) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			_, _, nodes := c.webPods(t)
			total := 0
			for _, n := range nodes {
				total += n
			}
			if total != 6 || !want(nodes) {
				return fmt.Sprint("pods by node: ", nodes)
			}
			return ""
		})
	}
	settled(func(nodes map[string]int) bool { return len(nodes) == 3 && nodes[""] == 0 })
	c.kill("n2", true)
	settled(func(nodes map[string]int) bool { return nodes["n2"] == 0 && nodes[""] == 0 })
	node, err := c.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]corev1.TaintEffect{}
	for _, taint := range node.Spec.Taints {
		keys[taint.Key+":"+string(taint.Effect)] = taint.Effect
	}
	for _, want := range []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"} {
		if keys[want] == "" {
			t.Errorf("the lost node lacks the taint %s: %v", want, node.Spec.Taints)
		}
	}
	c.kill("n2", false)
	runtimetest.Eventually(t, func() string {
		node, err := c.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
		if err != nil || len(node.Spec.Taints) > 0 {
			return fmt.Sprintf("taints of the healed node: %v, %v", node.Spec.Taints, err)
		}
		return ""
	})
}

func TestConfigIsChecked(t *testing.T) {
	c := runtimetest.New(t)
	key, _ := newCA(t)
	base := func() Config {
		return Config{Client: c.Clientset, Informers: c.Informers, Discovery: c.Discovery().(*discoveryfake.FakeDiscovery),
			Metadata: metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())}
	}
	for name, change := range map[string]func(*Config){
		"no informers":       func(c *Config) { c.Informers = nil },
		"no client":          func(c *Config) { c.Client = nil },
		"key without CA":     func(c *Config) { c.Signer = key },
		"unknown controller": func(c *Config) { c.Disabled = []string{"nonsense"} },
	} {
		cfg := base()
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m, err := New(base())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range m.Health() {
		if s.Healthy || s.Message != "not started" {
			t.Errorf("before Run: %+v", s)
		}
	}
}
