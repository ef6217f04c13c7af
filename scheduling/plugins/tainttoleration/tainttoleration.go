// Package tainttoleration keeps pods off nodes with a taint that they do not
// tolerate, and prefers those without a taint that would rather have them away.
package tainttoleration

import (
	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "TaintToleration"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come, a taint may go.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.NodeTaints }

// Helps: the pod tolerates what the node has now.
func (Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	return c.Node == nil || tolerates(p, c.Node)
}

var refused = plugin.RefuseFinal(name, "node(s) had untolerated taint(s)")

// Prepare concerns every pod.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		if tolerates(p, n) {
			return nil
		}
		return refused
	}}, nil
}

// WouldHelp names the taint.
func (Plugin) WouldHelp(p *cluster.Pod, n *cluster.Node) (plugin.Help, bool) {
	t, found := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, keepsOff, false)
	return plugin.Help{Text: "needs a toleration of " + t.ToString(), Cost: 1}, found
}

func tolerates(p *cluster.Pod, n *cluster.Node) bool {
	if len(n.Spec.Taints) == 0 {
		return true
	}
	_, found := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, keepsOff, false)
	return !found
}

// keepsOff tells hard taints from the one that is only a preference.
func keepsOff(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

// Score counts the taints of effect PreferNoSchedule that a pod does not tolerate.
type Score struct{}

// Name of the score.
func (Score) Name() string { return name }

// Prepare concerns every pod.
func (Score) Prepare(p *cluster.Pod, _ plugin.View) *plugin.Rating {
	var soft []corev1.Toleration
	for _, t := range p.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			soft = append(soft, t)
		}
	}
	return &plugin.Rating{Scale: plugin.Fewest, Of: func(n *cluster.Node) int64 {
		var k int64
		for i := range n.Spec.Taints {
			t := &n.Spec.Taints[i]
			if t.Effect == corev1.TaintEffectPreferNoSchedule && !corehelpers.TolerationsTolerateTaint(klog.Background(), soft, t, false) {
				k++
			}
		}
		return k
	}}
}
