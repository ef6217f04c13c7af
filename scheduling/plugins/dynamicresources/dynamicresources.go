// Package dynamicresources keeps pods that claim devices from nodes: this
// scheduler does not allocate claims, and a pod must not start without its
// devices.
package dynamicresources

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "DynamicResources"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: nothing that happens in the cluster changes it.
func (Plugin) Wakes() plugin.Event { return 0 }

// Prepare concerns pods with resource claims.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	if len(p.Spec.ResourceClaims) == 0 {
		return nil, nil
	}
	return nil, plugin.RefuseFinal(name, "pod has resource claims, which this scheduler does not allocate")
}
