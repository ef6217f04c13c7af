// Package nodeports keeps two pods from taking one port of a host.
package nodeports

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "NodePorts" }

// Wakes: a node may come, the pod that has the port may go.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.PodRemoved }

var refused = &plugin.Reason{Text: "node(s) didn't have free ports for the requested pod ports"}

// Prepare concerns pods with host ports.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	if len(p.Ports) == 0 {
		return nil, nil
	}
	return func(n *cluster.Node) *plugin.Reason {
		if _, taken := n.PortTaken(p.Ports); taken {
			return refused
		}
		return nil
	}, nil
}
