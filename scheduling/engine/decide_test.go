package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/profile"
	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

func label(k, v string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[k] = v } }

func taint(k string, e corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Effect: e}) }
}

func hostPort(port int32, ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: port, HostIP: ip, ContainerPort: port})
	}
}

func antiAffine(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}
	}
}

func affine(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}
	}
}

func spread(skew int32, key, app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	}
}

// TestDecide: which nodes a pod may go to, or why there is none.
func TestDecide(t *testing.T) {
	app := func(a string) func(*corev1.Pod) { return Labels(map[string]string{"app": a}) }
	for _, c := range []struct {
		name  string
		nodes []*corev1.Node
		pods  []*corev1.Pod
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		pv    *corev1.PersistentVolume
		want  string // nodes it may go to, or the refusal
	}{
		{name: "no nodes", pod: Pod("p", "1", "1Gi"), want: "no nodes available to schedule pods"},
		{name: "no room for cpu or memory", nodes: []*corev1.Node{Node("a", "1", "1Gi"), Node("b", "4", "1Gi"), Node("c", "1", "4Gi")}, pod: Pod("p", "2", "2Gi"),
			want: "0/3 nodes are available: 2 Insufficient cpu, 2 Insufficient memory."},
		{name: "room taken by others", nodes: []*corev1.Node{Node("a", "2", "4Gi"), Node("b", "2", "4Gi")}, pods: []*corev1.Pod{Pod("x", "1500m", "", On("a"))},
			pod: Pod("p", "1", ""), want: "b"},
		{name: "exactly enough", nodes: []*corev1.Node{Node("a", "2", "4Gi")}, pods: []*corev1.Pod{Pod("x", "1500m", "", On("a"))}, pod: Pod("p", "500m", "4Gi"), want: "a"},
		{name: "ended init containers count at their maximum", nodes: []*corev1.Node{Node("a", "2", "4Gi")}, pod: Pod("p", "500m", "", func(p *corev1.Pod) {
			p.Spec.InitContainers = Pod("i", "3", "").Spec.Containers
		}), want: "0/1 nodes are available: 1 Insufficient cpu."},
		{name: "too many pods", nodes: []*corev1.Node{Node("a", "2", "4Gi", func(n *corev1.Node) { n.Status.Allocatable["pods"] = n.Status.Allocatable["cpu"] })},
			pods: []*corev1.Pod{Pod("x", "", "", On("a")), Pod("y", "", "", On("a"))}, pod: Pod("p", "", ""), want: "0/1 nodes are available: 1 Too many pods."},
		{name: "unknown device", nodes: []*corev1.Node{Node("a", "2", "4Gi")}, pod: Pod("p", "", "", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = *Node("", "1", "").Status.Allocatable.Cpu()
		}), want: "0/1 nodes are available: 1 Insufficient example.com/gpu."},
		{name: "node selector", nodes: []*corev1.Node{Node("a", "1", "1Gi"), Node("b", "1", "1Gi", label("disk", "ssd"))},
			pod: Pod("p", "", "", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }), want: "b"},
		{name: "taints", nodes: []*corev1.Node{Node("a", "1", "1Gi", taint("x", corev1.TaintEffectNoSchedule)), Node("b", "1", "1Gi", taint("x", corev1.TaintEffectNoExecute)), Node("c", "1", "1Gi", taint("x", corev1.TaintEffectPreferNoSchedule))},
			pod: Pod("p", "", ""), want: "c"},
		{name: "taints tolerated", nodes: []*corev1.Node{Node("a", "1", "1Gi", taint("x", corev1.TaintEffectNoSchedule)), Node("b", "1", "1Gi", taint("y", corev1.TaintEffectNoSchedule))},
			pod: Pod("p", "", "", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}
			}), want: "a"},
		{name: "cordoned", nodes: []*corev1.Node{Node("a", "1", "1Gi", func(n *corev1.Node) { n.Spec.Unschedulable = true }), Node("b", "4", "1Gi")},
			pod: Pod("p", "8", ""), want: "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."},
		{name: "host port taken", nodes: []*corev1.Node{Node("a", "1", "1Gi"), Node("b", "1", "1Gi")}, pods: []*corev1.Pod{Pod("x", "", "", On("a"), hostPort(80, ""))},
			pod: Pod("p", "", "", hostPort(80, "127.0.0.1")), want: "b"},
		{name: "host port on another address", nodes: []*corev1.Node{Node("a", "1", "1Gi")}, pods: []*corev1.Pod{Pod("x", "", "", On("a"), hostPort(80, "192.0.2.1"))},
			pod: Pod("p", "", "", hostPort(80, "127.0.0.1")), want: "a"},
		{name: "anti-affinity of its own", nodes: []*corev1.Node{Node("a", "1", "1Gi"), Node("b", "1", "1Gi")}, pods: []*corev1.Pod{Pod("x", "", "", On("a"), app("w"))},
			pod: Pod("p", "", "", antiAffine("w")), want: "b"},
		{name: "anti-affinity of another", nodes: []*corev1.Node{Node("a", "1", "1Gi"), Node("b", "1", "1Gi")}, pods: []*corev1.Pod{Pod("x", "", "", On("a"), antiAffine("w"))},
			pod: Pod("p", "", "", app("w")), want: "b"},
		{name: "affinity", nodes: []*corev1.Node{Node("a", "1", "1Gi", label(corev1.LabelTopologyZone, "1")), Node("b", "1", "1Gi", label(corev1.LabelTopologyZone, "1")), Node("c", "1", "1Gi", label(corev1.LabelTopologyZone, "2"))},
			pods: []*corev1.Pod{Pod("x", "", "", On("a"), app("db"))}, pod: Pod("p", "", "", affine("db")), want: "a b"},
		{name: "affinity to nobody", nodes: []*corev1.Node{Node("a", "1", "1Gi", label(corev1.LabelTopologyZone, "1"))},
			pod: Pod("p", "", "", affine("db")), want: "0/1 nodes are available: 1 node(s) didn't match pod affinity rules."},
		{name: "affinity to itself, the first", nodes: []*corev1.Node{Node("a", "1", "1Gi", label(corev1.LabelTopologyZone, "1")), Node("b", "1", "1Gi")},
			pod: Pod("p", "", "", app("db"), affine("db")), want: "a"},
		{name: "spread", nodes: []*corev1.Node{Node("a", "9", "9Gi"), Node("b", "9", "9Gi")}, pods: []*corev1.Pod{Pod("x", "", "", On("a"), app("w"))},
			pod: Pod("p", "", "", app("w"), spread(1, corev1.LabelHostname, "w")), want: "b"},
		{name: "spread within the skew", nodes: []*corev1.Node{Node("a", "9", "9Gi"), Node("b", "9", "9Gi")}, pods: []*corev1.Pod{Pod("x", "", "", On("a"), app("w"))},
			pod: Pod("p", "", "", app("w"), spread(2, corev1.LabelHostname, "w")), want: "a b"},
		{name: "spread without the label", nodes: []*corev1.Node{Node("a", "9", "9Gi")}, pod: Pod("p", "", "", app("w"), spread(1, "rack", "w")),
			want: "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)."},
		{name: "claim missing", nodes: []*corev1.Node{Node("a", "9", "9Gi")}, pod: Pod("p", "", "", claims("c")), want: `0/1 nodes are available: persistentvolumeclaim "c" not found.`},
		{name: "claim bound to a volume of one node", nodes: []*corev1.Node{Node("a", "9", "9Gi"), Node("b", "9", "9Gi")}, pod: Pod("p", "", "", claims("c")),
			claim: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
			pv: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}}, want: "b"},
		{name: "node name", nodes: []*corev1.Node{Node("a", "9", "9Gi"), Node("b", "9", "9Gi")}, pod: Pod("p", "", "", On("b")), want: "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &Objects{}
			if c.claim != nil {
				o.Claims = map[string]*corev1.PersistentVolumeClaim{"default/c": c.claim}
				c.pv.Name = "v"
				o.PVs = []*corev1.PersistentVolume{c.pv}
			}
			e := engine.New(Cluster(c.nodes, c.pods...), o)
			prof := profile.Default().Profiles[0]
			// By a scan, and then by what is kept of its shape.
			for i := range 3 {
				if got := verdict(t, e, cluster.NewPod(c.pod), prof); got != c.want {
					t.Errorf("time %d: got  %s\nwant %s", i+1, got, c.want)
				}
			}
		})
	}
}

func claims(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	}
}

// verdict lists the nodes that no filter refuses, or the refusal; the decision must
// be one of them.
func verdict(t *testing.T, e *engine.Engine, p *cluster.Pod, prof *engine.Profile) string {
	t.Helper()
	d := e.Decide(p, prof)
	if d.Refusal != nil {
		return d.Refusal.String()
	}
	var fit []string
	for _, n := range e.Fitting(p, prof) {
		fit = append(fit, n.Name)
	}
	if !slices.Contains(fit, d.Node.Name) {
		t.Errorf("%s was chosen of %v", d.Node.Name, fit)
	}
	return strings.Join(fit, " ")
}

// TestClusterSumsEqualRecount: whatever events and assumptions come in whatever
// order, the running sums equal those counted from scratch.
func TestClusterSumsEqualRecount(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		c := cluster.New()
		pods := map[string]*cluster.Pod{}
		for i := range 12 {
			n := fmt.Sprint("p", i)
			pods[n] = cluster.NewPod(Pod(n, fmt.Sprint(r.IntN(900), "m"), fmt.Sprint(r.IntN(900), "Mi")))
		}
		for range 300 {
			name, node := fmt.Sprint("p", r.IntN(12)), fmt.Sprint("n", r.IntN(4))
			p := pods[name]
			switch r.IntN(6) {
			case 0:
				c.SetNode(Node(node, "4", "8Gi"))
			case 1:
				c.RemoveNode(node)
			case 2:
				c.Assume(p, node)
			case 3:
				q := p.DeepCopy()
				q.Spec.NodeName = node
				c.SetPod(cluster.NewPod(q))
			case 4:
				c.Forget(p.UID)
			case 5:
				c.RemovePod(p.UID)
			}
			for _, n := range c.Nodes() {
				var cpu, mem, k int64
				for _, q := range n.Pods {
					cpu, mem, k = cpu+q.Requests.MilliCPU, mem+q.Requests.Memory, k+1
				}
				if n.Requested.MilliCPU != cpu || n.Requested.Memory != mem || n.Requested.Pods != k {
					t.Fatalf("seed %d: node %s says %+v, recount %d %d %d", seed, n.Name, n.Requested, cpu, mem, k)
				}
			}
		}
	}
}

// TestBudgetsAreRespectedWherePossible: of two nodes the one whose pod has no
// budget loses it, until there is no other.
func TestBudgetsAreRespectedWherePossible(t *testing.T) {
	prio := func(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
	kept := func(name, node string) *corev1.Pod {
		return Pod(name, "1", "", On(node), prio(1), Labels(map[string]string{"app": "kept"}))
	}
	e := engine.New(Cluster([]*corev1.Node{Node("a", "1", "1Gi"), Node("b", "1", "1Gi")}, kept("x", "a"), Pod("y", "1", "", On("b"), prio(2), Labels(map[string]string{"app": "free"}))), &Objects{})
	e.SetBudgets([]engine.Budget{{Namespace: "default", Selector: labels.SelectorFromSet(labels.Set{"app": "kept"})}})
	prof := profile.Default().Profiles[0]
	preempt := func() *engine.Victims {
		p := cluster.NewPod(Pod("p", "1", "", prio(9)))
		return e.Preempt(p, prof, e.Decide(p, prof).Refusal)
	}
	if v := preempt(); v == nil || v.Node.Name != "b" || v.Violations != 0 {
		t.Fatalf("victims %+v, want those on b, though they are more important", v)
	}
	e.RemoveNode("b")
	if v := preempt(); v == nil || v.Node.Name != "a" || v.Violations != 1 {
		t.Fatalf("victims %+v, want those on a in spite of their budget", v)
	}
}
