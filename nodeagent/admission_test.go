package nodeagent

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func asking(cpu string, hostPort int32) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
		Ports:     []v1.ContainerPort{{ContainerPort: 80, HostPort: hostPort}}}}}}
}

func TestAdmission(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"disk": "ssd"}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourcePods: resource.MustParse("3")}}}
	with := func(p *v1.Pod, f func(*v1.Pod)) *v1.Pod { f(p); return p }
	affinity := func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
			{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"hdd"}}}}}}}}
	}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		others []*v1.Pod
		taint  *v1.Taint
		want   string
	}{
		{"fits", asking("2", 0), nil, nil, ""},
		{"too much", asking("2001m", 0), nil, nil, "OutOfcpu"},
		{"too much beside another", asking("1", 0), []*v1.Pod{asking("1500m", 0)}, nil, "OutOfcpu"},
		{"too many", asking("1m", 0), []*v1.Pod{asking("1m", 0), asking("1m", 0), asking("1m", 0)}, nil, "OutOfpods"},
		{"port taken", asking("1m", 8080), []*v1.Pod{asking("1m", 8080)}, nil, "NodePorts"},
		{"other port", asking("1m", 8081), []*v1.Pod{asking("1m", 8080)}, nil, ""},
		{"same port, other address", with(asking("1m", 8080), func(p *v1.Pod) { p.Spec.Containers[0].Ports[0].HostIP = "192.0.2.1" }),
			[]*v1.Pod{with(asking("1m", 8080), func(p *v1.Pod) { p.Spec.Containers[0].Ports[0].HostIP = "192.0.2.2" })}, nil, ""},
		{"selector", with(asking("1m", 0), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }), nil, nil, "NodeAffinity"},
		{"affinity", with(asking("1m", 0), affinity), nil, nil, "NodeAffinity"},
		{"taint", asking("1m", 0), nil, &v1.Taint{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute}, "TaintToleration"},
		{"taint that only keeps the scheduler away", asking("1m", 0), nil, &v1.Taint{Key: "k", Effect: v1.TaintEffectNoSchedule}, ""},
		{"tolerated", with(asking("1m", 0), func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}} }), nil, &v1.Taint{Key: "k", Effect: v1.TaintEffectNoExecute}, ""},
		{"other system", with(asking("1m", 0), func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }), nil, nil, "PodOSNotSupported"},
	} {
		n := node.DeepCopy()
		if c.taint != nil {
			n.Spec.Taints = []v1.Taint{*c.taint}
		}
		got := ""
		if r := admit(c.pod, c.others, n); r != nil {
			got = r.reason
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
