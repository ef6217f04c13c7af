// Package noderesources keeps a pod off nodes that have not enough of what it
// asks for left, and prefers nodes by how full they would be with it.
package noderesources

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const fitName = "NodeResourcesFit"

// Fit is the filter.
type Fit struct {
	// Ignored are extended resources that are not looked at, by name, and by the
	// part of the name before the slash.
	Ignored, IgnoredGroups sets.Set[string]
}

// Name of the filter.
func (Fit) Name() string { return fitName }

// Wakes: a node may come or offer more, a pod may go.
func (Fit) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeAllocatable | plugin.PodRemoved
}

// Helps: the node would have room for the pod, whatever else is wrong with it.
func (f Fit) Helps(p *cluster.Pod, c plugin.Change) bool {
	return c.Node == nil || f.lacks(p, c.Node) == nil
}

// Prepare concerns every pod: it takes at least the room of one pod.
func (f Fit) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason { return f.lacks(p, n) }}, nil
}

func (f Fit) ignores(name corev1.ResourceName) bool {
	if len(f.Ignored) == 0 && len(f.IgnoredGroups) == 0 {
		return false
	}
	group, _, _ := strings.Cut(string(name), "/")
	return f.Ignored.Has(string(name)) || f.IgnoredGroups.Has(group)
}

// lacks is what the node has too little of.
func (f Fit) lacks(p *cluster.Pod, n *cluster.Node) *plugin.Reason {
	want, has, used := &p.Requests, &n.Allocatable, &n.Requested
	if used.Pods+1 <= has.Pods &&
		(want.MilliCPU == 0 || want.MilliCPU <= has.MilliCPU-used.MilliCPU) &&
		(want.Memory == 0 || want.Memory <= has.Memory-used.Memory) &&
		(want.EphemeralStorage == 0 || want.EphemeralStorage <= has.EphemeralStorage-used.EphemeralStorage) &&
		len(want.Scalars) == 0 {
		return nil
	}
	var texts []string
	final := false
	check := func(name string, want, has, used int64) {
		if want > 0 && want > has-used {
			texts = append(texts, "Insufficient "+name)
			final = final || want > has
		}
	}
	if used.Pods+1 > has.Pods {
		texts = append(texts, "Too many pods")
		final = has.Pods < 1
	}
	check("cpu", want.MilliCPU, has.MilliCPU, used.MilliCPU)
	check("memory", want.Memory, has.Memory, used.Memory)
	check("ephemeral-storage", want.EphemeralStorage, has.EphemeralStorage, used.EphemeralStorage)
	for _, name := range slices.Sorted(maps.Keys(want.Scalars)) {
		if !f.ignores(name) {
			check(string(name), want.Scalars[name], has.Scalars[name], used.Scalars[name])
		}
	}
	if texts == nil {
		return nil
	}
	return &plugin.Reason{Plugin: fitName, Texts: texts, Final: final}
}

// WouldHelp says how much more the node would have to have free.
func (f Fit) WouldHelp(p *cluster.Pod, n *cluster.Node) (plugin.Help, bool) {
	var parts []string
	var cost float64
	more := func(name string, want, has, used int64, format resource.Format, milli bool) {
		lack := want - (has - used)
		if want <= 0 || lack <= 0 {
			return
		}
		q := resource.NewQuantity(lack, format)
		if milli {
			q = resource.NewMilliQuantity(lack, format)
		}
		parts = append(parts, fmt.Sprintf("%v more %s", q, name))
		cost = max(cost, float64(lack)/float64(max(has, 1)))
	}
	want, has, used := &p.Requests, &n.Allocatable, &n.Requested
	more("cpu", want.MilliCPU, has.MilliCPU, used.MilliCPU, resource.DecimalSI, true)
	more("memory", want.Memory, has.Memory, used.Memory, resource.BinarySI, false)
	more("ephemeral-storage", want.EphemeralStorage, has.EphemeralStorage, used.EphemeralStorage, resource.BinarySI, false)
	for _, name := range slices.Sorted(maps.Keys(want.Scalars)) {
		more(string(name), want.Scalars[name], has.Scalars[name], used.Scalars[name], resource.DecimalSI, false)
	}
	if used.Pods+1 > has.Pods {
		parts = append(parts, "room for one more pod")
		cost = max(cost, 1/float64(max(has.Pods, 1)))
	}
	return plugin.Help{Text: "needs " + strings.Join(parts, " and "), Cost: cost}, len(parts) > 0
}
