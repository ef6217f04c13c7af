// Package nodeaffinity holds a pod to nodes that its node selector and its
// required node affinity match.
package nodeaffinity

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "NodeAffinity" }

// Wakes: a node may come or be labelled.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.NodeLabels }

var (
	refused = &plugin.Reason{Text: "node(s) didn't match Pod's node affinity/selector"}
	invalid = &plugin.Reason{Text: "Pod's node affinity cannot be parsed"}
)

// Prepare concerns pods with a selector or a required affinity.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	a := p.Spec.Affinity
	if len(p.Spec.NodeSelector) == 0 && (a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil) {
		return nil, nil
	}
	return func(n *cluster.Node) *plugin.Reason {
		ok, err := p.Affinity.Match(n.Node)
		if err != nil {
			return invalid
		}
		if !ok {
			return refused
		}
		return nil
	}, nil
}
