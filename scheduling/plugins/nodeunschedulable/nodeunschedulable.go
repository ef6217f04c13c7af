// Package nodeunschedulable keeps pods off cordoned nodes.
package nodeunschedulable

import (
	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "NodeUnschedulable"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come or be uncordoned.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.NodeTaints }

// Helps: the node is not cordoned.
func (Plugin) Helps(_ *cluster.Pod, c plugin.Change) bool {
	return c.Node == nil || !c.Node.Spec.Unschedulable
}

var (
	refused = plugin.RefuseFinal(name, "node(s) were unschedulable")
	cordon  = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
)

// Prepare concerns pods that do not tolerate the cordon.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	if corehelpers.TolerationsTolerateTaint(klog.Background(), p.Spec.Tolerations, &cordon, false) {
		return nil, nil
	}
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		if n.Spec.Unschedulable {
			return refused
		}
		return nil
	}}, nil
}

// WouldHelp: to uncordon it.
func (Plugin) WouldHelp(*cluster.Pod, *cluster.Node) (plugin.Help, bool) {
	return plugin.Help{Text: "needs an end of the cordon", Cost: 1}, true
}
