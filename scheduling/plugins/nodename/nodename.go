// Package nodename keeps a pod that names its node off the others.
package nodename

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "NodeName" }

// Wakes: the node may come.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded }

var refused = &plugin.Reason{Text: "node(s) didn't match the requested node name"}

// Prepare concerns pods with spec.nodeName.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	want := p.Spec.NodeName
	if want == "" {
		return nil, nil
	}
	return func(n *cluster.Node) *plugin.Reason {
		if n.Name != want {
			return refused
		}
		return nil
	}, nil
}
