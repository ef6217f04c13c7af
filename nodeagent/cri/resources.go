package cri

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cgroups"
)

const (
	quotaPeriod = 100000 // microseconds
	minQuota    = 1000   // microseconds, the kernel's least
	minShares   = 2
	maxShares   = 262144

	// OOM scores, Kubernetes' documented values.
	guaranteedOOM = -997
	bestEffortOOM = 1000

	systemCriticalPriority = 2 * 1000000000
)

// QOS returns a pod's quality of service class from its resources.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass // the API computed it at admission and does not let it change
	}
	if r := pod.Spec.Resources; r != nil && (len(r.Requests) > 0 || len(r.Limits) > 0) {
		return classOf([]v1.ResourceRequirements{*r})
	}
	var all []v1.ResourceRequirements
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			all = append(all, c.Resources)
		}
	}
	return classOf(all)
}

func classOf(all []v1.ResourceRequirements) v1.PodQOSClass {
	any, guaranteed := false, true
	for _, r := range all {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			req, hasReq := r.Requests[name]
			lim, hasLim := r.Limits[name]
			any = any || (hasReq && !req.IsZero()) || (hasLim && !lim.IsZero())
			if !hasLim || lim.IsZero() || (hasReq && req.Cmp(lim) != 0) {
				guaranteed = false
			}
		}
	}
	switch {
	case !any:
		return v1.PodQOSBestEffort
	case guaranteed:
		return v1.PodQOSGuaranteed
	default:
		return v1.PodQOSBurstable
	}
}

func shares(milli int64) int64 {
	return min(max(milli*1024/1000, minShares), maxShares)
}

func quota(milli int64) int64 {
	if milli == 0 {
		return 0
	}
	return max(milli*quotaPeriod/1000, minQuota)
}

// ContainerResources is a container's share of the host. memory is the node's
// capacity in bytes, against which the OOM score is reckoned.
func ContainerResources(pod *v1.Pod, c *v1.Container, memory int64) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{OomScoreAdj: OOMScore(pod, c, memory)}
	cpuReq, hasReq := c.Resources.Requests[v1.ResourceCPU]
	cpuLim, hasLim := c.Resources.Limits[v1.ResourceCPU]
	if !hasReq && hasLim {
		cpuReq = cpuLim
	}
	out.CpuShares = shares(cpuReq.MilliValue())
	if hasLim {
		out.CpuQuota, out.CpuPeriod = quota(cpuLim.MilliValue()), quotaPeriod
	}
	if m, ok := c.Resources.Limits[v1.ResourceMemory]; ok {
		out.MemoryLimitInBytes = m.Value()
	}
	return out
}

// OOMScore is the oom_score_adj of a container's processes: the more of what
// it uses it had asked for, the later it is killed.
func OOMScore(pod *v1.Pod, c *v1.Container, memory int64) int64 {
	if pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCriticalPriority {
		return guaranteedOOM
	}
	switch QOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOM
	case v1.PodQOSBestEffort:
		return bestEffortOOM
	}
	if memory <= 0 {
		return bestEffortOOM - 1
	}
	req := c.Resources.Requests[v1.ResourceMemory]
	if req.IsZero() {
		req = c.Resources.Limits[v1.ResourceMemory]
	}
	score := 1000 - 1000*req.Value()/memory
	return min(max(score, 1000+guaranteedOOM), bestEffortOOM-1)
}

// PodLimits are the limits of a pod's cgroup: the sum of its containers, where
// every one of them has a limit, and the requests as shares.
func PodLimits(pod *v1.Pod) cgroups.Limits {
	var cpuReq, cpuLim, memLim int64
	allCPU, allMem := true, true
	seq := func(c *v1.Container) (req, lim, mem int64, hasLim, hasMem bool) {
		r, l := c.Resources.Requests[v1.ResourceCPU], c.Resources.Limits[v1.ResourceCPU]
		m := c.Resources.Limits[v1.ResourceMemory]
		if _, ok := c.Resources.Requests[v1.ResourceCPU]; !ok {
			r = l
		}
		return r.MilliValue(), l.MilliValue(), m.Value(), !l.IsZero(), !m.IsZero()
	}
	for _, c := range allLongRunning(pod) {
		r, l, m, hl, hm := seq(&c)
		cpuReq, cpuLim, memLim = cpuReq+r, cpuLim+l, memLim+m
		allCPU, allMem = allCPU && hl, allMem && hm
	}
	for _, c := range pod.Spec.InitContainers { // they run alone: the largest counts
		r, l, m, hl, hm := seq(&c)
		cpuReq, cpuLim, memLim = max(cpuReq, r), max(cpuLim, l), max(memLim, m)
		allCPU, allMem = allCPU && hl, allMem && hm
	}
	if r := pod.Spec.Resources; r != nil {
		set := func(list v1.ResourceList, name v1.ResourceName, f func(resource.Quantity)) {
			if q, ok := list[name]; ok {
				f(q)
			}
		}
		set(r.Requests, v1.ResourceCPU, func(q resource.Quantity) { cpuReq = q.MilliValue() })
		set(r.Limits, v1.ResourceCPU, func(q resource.Quantity) { cpuLim, allCPU = q.MilliValue(), true })
		set(r.Limits, v1.ResourceMemory, func(q resource.Quantity) { memLim, allMem = q.Value(), true })
	}
	for name, q := range pod.Spec.Overhead {
		switch name {
		case v1.ResourceCPU:
			cpuReq, cpuLim = cpuReq+q.MilliValue(), cpuLim+q.MilliValue()
		case v1.ResourceMemory:
			memLim += q.Value()
		}
	}
	l := cgroups.Limits{CPUShares: uint64(shares(cpuReq)), CPUPeriod: quotaPeriod}
	if allCPU && cpuLim > 0 {
		l.CPUQuota = quota(cpuLim)
	}
	if allMem && memLim > 0 {
		l.MemoryBytes = memLim
	}
	return l
}
