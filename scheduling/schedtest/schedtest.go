// Package schedtest builds pods, nodes and views for tests of scheduling.
package schedtest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
)

// Pod makes a pod in namespace default that asks for cpu and memory ("" for
// nothing), changed by each of with.
func Pod(name, cpu, memory string, with ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: list("cpu", cpu, "memory", memory)}}}},
	}
	for _, f := range with {
		f(p)
	}
	return p
}

// Node makes a node with room for 110 pods.
func Node(name, cpu, memory string, with ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{corev1.LabelHostname: name}},
		Status:     corev1.NodeStatus{Allocatable: list("cpu", cpu, "memory", memory, "pods", "110")},
	}
	for _, f := range with {
		f(n)
	}
	return n
}

func list(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		if kv[i+1] != "" {
			l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
		}
	}
	return l
}

// Labels sets labels of a pod.
func Labels(kv map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = kv }
}

// On puts a pod on a node.
func On(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = node }
}

// OwnedBy gives a pod a controller.
func OwnedBy(uid string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(uid), Controller: &yes, Kind: "ReplicaSet", Name: uid, APIVersion: "apps/v1"}}
	}
}

// View is a fixed cluster.
type View struct {
	*cluster.Cluster
	Claims     map[string]*corev1.PersistentVolumeClaim // by namespace/name
	Volumes    map[string]*corev1.PersistentVolume
	Namespaces map[string]labels.Set
}

// NewView holds the nodes and the pods placed on them.
func NewView(nodes []*corev1.Node, pods ...*corev1.Pod) *View {
	v := &View{Cluster: cluster.New()}
	for _, n := range nodes {
		v.SetNode(n)
	}
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			panic(fmt.Sprintf("pod %s is on no node", p.Name))
		}
		v.SetPod(cluster.NewPod(p))
	}
	return v
}

// Claim of the view.
func (v *View) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return v.Claims[namespace+"/"+name]
}

// Volume of the view.
func (v *View) Volume(name string) *corev1.PersistentVolume { return v.Volumes[name] }

// NamespaceLabels of the view.
func (v *View) NamespaceLabels(name string) labels.Set { return v.Namespaces[name] }
