// Package nodename keeps a pod that names its node off the others.
package nodename

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "NodeName"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: the node may come.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded }

// Helps: it has the name.
func (Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	return c.Node == nil || c.Node.Name == p.Spec.NodeName
}

var refused = plugin.RefuseFinal(name, "node(s) didn't match the requested node name")

// Prepare concerns pods with spec.nodeName.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	want := p.Spec.NodeName
	if want == "" {
		return nil, nil
	}
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		if n.Name != want {
			return refused
		}
		return nil
	}}, nil
}
