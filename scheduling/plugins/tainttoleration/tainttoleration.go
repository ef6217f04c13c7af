// Package tainttoleration keeps pods off nodes with a taint that they do not
// tolerate.
package tainttoleration

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "TaintToleration" }

// Wakes: a node may come, a taint may go.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.NodeTaints }

// Prepare concerns every pod.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	return func(n *cluster.Node) *plugin.Reason {
		t, found := corehelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, keepsOff, false)
		if !found {
			return nil
		}
		return &plugin.Reason{Text: fmt.Sprintf("node(s) had untolerated taint(s) {%s: %s}", t.Key, t.Value)}
	}, nil
}

// keepsOff tells hard taints from the one that is only a preference.
func keepsOff(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}
