package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is a node and what stands on it. The scheduler's one goroutine and its
// filters read it; only Cluster changes it.
type Node struct {
	*corev1.Node                  // nil while only its pods are known
	Allocatable  Resources        // what pods may ask for in total
	Requested    Resources        // what the pods on it ask for
	ForScore     Resources        // the same, with a small amount for pods that ask for nothing
	Images       map[string]int64 // size in bytes, by name
	Pods         map[types.UID]*Pod
	// Nominated are pods that have been promised room here by preemption and wait
	// for it; they are not in Pods and in no sum.
	Nominated []*Pod

	slot  int32 // its place in Cluster.slots and in every Topology
	ports int   // pods with host ports
}

// Slot is a small number that the node has while it exists; another node may have
// it later.
func (n *Node) Slot() int { return int(n.slot) }

// Room is what is left of each resource; see Resources for the units.
func (n *Node) Room() Resources {
	r := n.Allocatable
	r.Scalars = maps.Clone(n.Allocatable.Scalars)
	r.add(&n.Requested, -1)
	return r
}

// PortTaken returns the first of the ports that a pod on the node has.
func (n *Node) PortTaken(ports []HostPort) (HostPort, bool) {
	if len(ports) == 0 || n.ports == 0 {
		return HostPort{}, false
	}
	for _, p := range n.Pods {
		for _, have := range p.Ports {
			for _, want := range ports {
				if have.Conflicts(want) {
					return want, true
				}
			}
		}
	}
	return HostPort{}, false
}

// NominatedAbove are the pods promised room here whose priority is at least that
// of the pod, other than the pod itself: it must not take their room.
func (n *Node) NominatedAbove(p *Pod) []*Pod {
	var out []*Pod
	for _, q := range n.Nominated {
		if q.Priority >= p.Priority && q.UID != p.UID {
			out = append(out, q)
		}
	}
	return out
}

func (n *Node) place(p *Pod, sign int64) {
	score := p.Requests.ForScore()
	n.Requested.add(&p.Requests, sign)
	n.ForScore.add(&score, sign)
	if len(p.Ports) > 0 {
		n.ports += int(sign)
	}
	if sign > 0 {
		n.Pods[p.UID] = p
	} else {
		delete(n.Pods, p.UID)
	}
}

func (n *Node) denominate(uid types.UID) *Pod {
	i := slices.IndexFunc(n.Nominated, func(p *Pod) bool { return p.UID == uid })
	p := n.Nominated[i]
	n.Nominated = slices.Delete(n.Nominated, i, i+1)
	return p
}

// imagesOf are the sizes of a node's images by each of their names.
func imagesOf(n *corev1.Node) map[string]int64 {
	if len(n.Status.Images) == 0 {
		return nil
	}
	out := make(map[string]int64, len(n.Status.Images))
	for _, i := range n.Status.Images {
		for _, name := range i.Names {
			out[name] = i.SizeBytes
		}
	}
	return out
}
