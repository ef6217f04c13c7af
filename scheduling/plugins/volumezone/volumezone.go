// Package volumezone holds a pod to the zones and regions that its volumes are
// labelled with.
package volumezone

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "VolumeZone"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come or be labelled, a volume may change.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.StorageChanged
}

var refused = plugin.RefuseFinal(name, "node(s) had no available volume zone")

// keys of volumes, each with those of nodes that mean the same.
var keys = map[string][]string{
	corev1.LabelTopologyZone:            {corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone},
	corev1.LabelTopologyRegion:          {corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion},
	corev1.LabelFailureDomainBetaZone:   {corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
	corev1.LabelFailureDomainBetaRegion: {corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
}

// separator of values in a volume's label.
const separator = "__"

type need struct {
	keys, values []string
}

// Prepare concerns pods with bound claims whose volumes have such labels.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (*plugin.Check, *plugin.Reason) {
	var needs []need
	for i := range p.Spec.Volumes {
		claim := cluster.ClaimName(p.Pod, &p.Spec.Volumes[i])
		if claim == "" {
			continue
		}
		c := v.Claim(p.Namespace, claim)
		if c == nil {
			return nil, plugin.RefuseFinal(name, fmt.Sprintf("persistentvolumeclaim %q not found", claim))
		}
		pv := v.Volume(c.Spec.VolumeName)
		if pv == nil {
			continue // unbound: VolumeBinding judges it
		}
		for k, same := range keys {
			if l, ok := pv.Labels[k]; ok {
				needs = append(needs, need{same, strings.Split(l, separator)})
			}
		}
	}
	if len(needs) == 0 {
		return nil, nil
	}
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		for _, x := range needs {
			var has string
			labelled := false
			for _, k := range x.keys {
				if l, ok := n.Labels[k]; ok {
					has, labelled = l, true
					break
				}
			}
			if !labelled || !slices.Contains(x.values, has) {
				return refused
			}
		}
		return nil
	}}, nil
}
