package nodeagent

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	ktypes "k8s.io/kubelet/pkg/types"
)

// summary puts the runtime's container figures into the form of
// /stats/summary.
func (a *Agent) summary(ctx context.Context) (*statsapi.Summary, error) {
	list, err := a.runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("container statistics from the runtime: %w", err)
	}
	now := metav1.Now()
	out := &statsapi.Summary{Node: statsapi.NodeStats{NodeName: a.cfg.NodeName, StartTime: metav1.NewTime(bootTime())}}
	pods := map[types.UID]*statsapi.PodStats{}
	var order []types.UID
	var nodeCPU, nodeMem uint64
	for _, s := range list {
		l := s.GetAttributes().GetLabels()
		uid := types.UID(l[ktypes.KubernetesPodUIDLabel])
		name := l[ktypes.KubernetesContainerNameLabel]
		if uid == "" || name == "" || s.GetMemory().GetWorkingSetBytes() == nil {
			continue // an instance that has ended uses nothing
		}
		ps := pods[uid]
		if ps == nil {
			ps = &statsapi.PodStats{
				PodRef: statsapi.PodReference{Name: l[ktypes.KubernetesPodNameLabel], Namespace: l[ktypes.KubernetesPodNamespaceLabel], UID: string(uid)},
				CPU:    &statsapi.CPUStats{Time: now, UsageCoreNanoSeconds: new(uint64), UsageNanoCores: new(uint64)},
				Memory: &statsapi.MemoryStats{Time: now, WorkingSetBytes: new(uint64), UsageBytes: new(uint64), RSSBytes: new(uint64)},
			}
			if p := a.pods.get(uid); p != nil && p.Status.StartTime != nil {
				ps.StartTime = *p.Status.StartTime
			}
			pods[uid] = ps
			order = append(order, uid)
		}
		cs := containerStats(name, s)
		if p := a.pods.get(uid); p != nil {
			for _, st := range append(append([]v1.ContainerStatus{}, p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...) {
				if st.Name == name && st.State.Running != nil {
					cs.StartTime = st.State.Running.StartedAt
				}
			}
		}
		ps.Containers = append(ps.Containers, cs)
		add(ps.CPU.UsageCoreNanoSeconds, cs.CPU.UsageCoreNanoSeconds)
		add(ps.CPU.UsageNanoCores, cs.CPU.UsageNanoCores)
		add(ps.Memory.WorkingSetBytes, cs.Memory.WorkingSetBytes)
		add(ps.Memory.UsageBytes, cs.Memory.UsageBytes)
		add(ps.Memory.RSSBytes, cs.Memory.RSSBytes)
	}
	for _, uid := range order {
		out.Pods = append(out.Pods, *pods[uid])
	}
	nodeCPU, nodeMem, avail := hostUsage()
	out.Node.CPU = &statsapi.CPUStats{Time: now, UsageCoreNanoSeconds: &nodeCPU}
	out.Node.Memory = &statsapi.MemoryStats{Time: now, WorkingSetBytes: &nodeMem, UsageBytes: &nodeMem, AvailableBytes: &avail}
	out.Node.Fs = fsStats(a.cfg.RootDir, now)
	return out, nil
}

func containerStats(name string, s *runtimeapi.ContainerStats) statsapi.ContainerStats {
	cs := statsapi.ContainerStats{Name: name, CPU: &statsapi.CPUStats{Time: metav1.Now()}, Memory: &statsapi.MemoryStats{Time: metav1.Now()}}
	if c := s.GetCpu(); c != nil {
		cs.CPU.Time = metav1.NewTime(time.Unix(0, c.Timestamp))
		cs.CPU.UsageCoreNanoSeconds = value(c.UsageCoreNanoSeconds)
		cs.CPU.UsageNanoCores = value(c.UsageNanoCores)
	}
	if m := s.GetMemory(); m != nil {
		cs.Memory.Time = metav1.NewTime(time.Unix(0, m.Timestamp))
		cs.Memory.WorkingSetBytes = value(m.WorkingSetBytes)
		cs.Memory.UsageBytes = value(m.UsageBytes)
		cs.Memory.RSSBytes = value(m.RssBytes)
	}
	if f := s.GetWritableLayer(); f != nil {
		cs.Rootfs = &statsapi.FsStats{Time: metav1.NewTime(time.Unix(0, f.Timestamp)), UsedBytes: value(f.UsedBytes), InodesUsed: value(f.InodesUsed)}
	}
	return cs
}

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.Value
	return &n
}

func add(sum, v *uint64) {
	if v != nil {
		*sum += *v
	}
}
