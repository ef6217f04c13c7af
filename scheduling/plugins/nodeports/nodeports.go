// Package nodeports keeps two pods from taking one port of a host.
package nodeports

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "NodePorts"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come, the pod that has the port may go.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.PodRemoved }

// Helps: the pod that went had one of the ports.
func (Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	if c.Kind != plugin.PodRemoved || c.Pod == nil {
		return true
	}
	for _, have := range c.Pod.Ports {
		for _, want := range p.Ports {
			if have.Conflicts(want) {
				return true
			}
		}
	}
	return false
}

var refused = plugin.Refuse(name, "node(s) didn't have free ports for the requested pod ports")

// Prepare concerns pods with host ports.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	if len(p.Ports) == 0 {
		return nil, nil
	}
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		if _, taken := n.PortTaken(p.Ports); taken {
			return refused
		}
		return nil
	}}, nil
}
