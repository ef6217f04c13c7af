// Package schedtest builds pods, nodes and clusters for tests of scheduling.
package schedtest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
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

// Cluster holds the nodes and the pods placed on them.
func Cluster(nodes []*corev1.Node, pods ...*corev1.Pod) *cluster.Cluster {
	c := cluster.New()
	c.SetNamespace("default", labels.Set{corev1.LabelMetadataName: "default"})
	for _, n := range nodes {
		c.SetNode(n)
	}
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			panic(fmt.Sprintf("pod %s is on no node", p.Name))
		}
		c.SetPod(cluster.NewPod(p))
	}
	return c
}

// Objects are what a test says there is beside nodes and pods.
type Objects struct {
	Claims     map[string]*corev1.PersistentVolumeClaim // by namespace/name
	PVs        []*corev1.PersistentVolume
	Classes    map[string]*storagev1.StorageClass
	CSINodes   map[string]*storagev1.CSINode
	CSIDrivers map[string]*storagev1.CSIDriver
	Capacities []*storagev1.CSIStorageCapacity
	Attached   []*storagev1.VolumeAttachment
	ServicesOf func(*corev1.Pod) []labels.Selector // nil: none
	Assumed    *plugin.Assumed                     // nil: nothing
	SelectorOf func(*corev1.Pod) labels.Selector   // of the owner; nil: none
}

// Claim by namespace and name.
func (o *Objects) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return o.Claims[namespace+"/"+name]
}

// Volume by name.
func (o *Objects) Volume(name string) *corev1.PersistentVolume {
	for _, v := range o.PVs {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Volumes are all.
func (o *Objects) Volumes() []*corev1.PersistentVolume { return o.PVs }

// StorageClass by name.
func (o *Objects) StorageClass(name string) *storagev1.StorageClass { return o.Classes[name] }

// CSINode by name.
func (o *Objects) CSINode(name string) *storagev1.CSINode { return o.CSINodes[name] }

// CSIDriver by name.
func (o *Objects) CSIDriver(name string) *storagev1.CSIDriver { return o.CSIDrivers[name] }

// CSICapacities of a class.
func (o *Objects) CSICapacities(class string) []*storagev1.CSIStorageCapacity {
	var out []*storagev1.CSIStorageCapacity
	for _, c := range o.Capacities {
		if c.StorageClassName == class {
			out = append(out, c)
		}
	}
	return out
}

// Attachments of a node.
func (o *Objects) Attachments(node string) []*storagev1.VolumeAttachment {
	var out []*storagev1.VolumeAttachment
	for _, a := range o.Attached {
		if a.Spec.NodeName == node {
			out = append(out, a)
		}
	}
	return out
}

// OwnerSelector of a pod.
func (o *Objects) OwnerSelector(p *corev1.Pod) labels.Selector {
	if o.SelectorOf == nil {
		return nil
	}
	return o.SelectorOf(p)
}

// ServiceSelectors of a pod.
func (o *Objects) ServiceSelectors(p *corev1.Pod) []labels.Selector {
	if o.ServicesOf == nil {
		return nil
	}
	return o.ServicesOf(p)
}

// Held is what reservations hold.
func (o *Objects) Held() *plugin.Assumed {
	if o.Assumed == nil {
		o.Assumed = plugin.NewAssumed()
	}
	return o.Assumed
}
