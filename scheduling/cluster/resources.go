package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// Resources is an amount of each resource. CPU is in thousandths of a core,
// memory and storage in bytes, the others in their own unit.
type Resources struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	// Pods is how many pods fit, in a node's allocatable; in a sum, how many there are.
	Pods int64
	// Scalars holds everything else: huge pages, devices. Nil when there is none.
	Scalars map[corev1.ResourceName]int64
}

// Of converts an API resource list.
func Of(l corev1.ResourceList) Resources {
	var r Resources
	for name, q := range l {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		case corev1.ResourcePods:
			r.Pods = q.Value()
		default:
			if r.Scalars == nil {
				r.Scalars = map[corev1.ResourceName]int64{}
			}
			r.Scalars[name] = q.Value()
		}
	}
	return r
}

// OfPod is what a pod asks for: its containers, init containers, sidecars,
// overhead and what a resize in place has been granted, as the kubelet counts.
func OfPod(p *corev1.Pod) Resources {
	r := Of(resource.PodRequests(p, resource.PodResourcesOptions{UseStatusResources: true}))
	r.Pods = 1
	return r
}

// Add adds o, times sign (1 or -1).
func (r *Resources) add(o *Resources, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	r.Pods += sign * o.Pods
	for name, v := range o.Scalars {
		if r.Scalars == nil {
			r.Scalars = map[corev1.ResourceName]int64{}
		}
		if r.Scalars[name] += sign * v; r.Scalars[name] == 0 {
			delete(r.Scalars, name)
		}
	}
}

// What a pod that asks for nothing counts as in scores, so that such pods spread
// too: kube-scheduler's figures.
const (
	unaskedMilliCPU = 100
	unaskedMemory   = 200 << 20
)

// ForScore is r with a small amount in place of nothing.
func (r Resources) ForScore() Resources {
	if r.MilliCPU == 0 {
		r.MilliCPU = unaskedMilliCPU
	}
	if r.Memory == 0 {
		r.Memory = unaskedMemory
	}
	return r
}
