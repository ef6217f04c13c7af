// Package noderesources keeps a pod off nodes that have not enough of what it
// asks for left.
package noderesources

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "NodeResourcesFit" }

// Wakes: a node may come or offer more, a pod may go.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeAllocatable | plugin.PodRemoved
}

var (
	tooManyPods = &plugin.Reason{Text: "Too many pods"}
	noCPU       = &plugin.Reason{Text: "Insufficient cpu"}
	noMemory    = &plugin.Reason{Text: "Insufficient memory"}
	noStorage   = &plugin.Reason{Text: "Insufficient ephemeral-storage"}
)

// Prepare concerns every pod: it takes at least the room of one pod.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	want := &p.Requests
	scalars := make([]string, 0, len(want.Scalars))
	for name := range want.Scalars {
		scalars = append(scalars, string(name))
	}
	slices.Sort(scalars)
	return func(n *cluster.Node) *plugin.Reason {
		has, used := &n.Allocatable, &n.Requested
		lacks := func(want, has, used int64) bool { return want > 0 && want > has-used }
		switch {
		case used.Pods+1 > has.Pods:
			return tooManyPods
		case lacks(want.MilliCPU, has.MilliCPU, used.MilliCPU):
			return noCPU
		case lacks(want.Memory, has.Memory, used.Memory):
			return noMemory
		case lacks(want.EphemeralStorage, has.EphemeralStorage, used.EphemeralStorage):
			return noStorage
		}
		for _, s := range scalars {
			name := corev1.ResourceName(s)
			if lacks(want.Scalars[name], has.Scalars[name], used.Scalars[name]) {
				return &plugin.Reason{Text: "Insufficient " + s}
			}
		}
		return nil
	}, nil
}
