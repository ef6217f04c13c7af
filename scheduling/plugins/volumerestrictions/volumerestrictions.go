// Package volumerestrictions keeps two pods from using one claim that only one
// pod may use.
package volumerestrictions

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "VolumeRestrictions"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: the pod that uses the claim may go.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.PodRemoved | plugin.StorageChanged
}

// Helps: the pod that went used one of the claims.
func (Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	return c.Pod == nil || slices.ContainsFunc(c.Pod.Claims, func(x string) bool { return slices.Contains(p.Claims, x) })
}

var refused = plugin.Refuse(name, "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")

// Prepare concerns pods with claims of access mode ReadWriteOncePod.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (*plugin.Check, *plugin.Reason) {
	var alone []string
	for _, key := range p.Claims {
		_, claim, _ := strings.Cut(key, "/")
		c := v.Claim(p.Namespace, claim)
		if c == nil {
			return nil, plugin.RefuseFinal(name, fmt.Sprintf("persistentvolumeclaim %q not found", claim))
		}
		if slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
			alone = append(alone, claim)
		}
	}
	if len(alone) == 0 {
		return nil, nil
	}
	return &plugin.Check{Fits: func(*cluster.Node) *plugin.Reason {
		for _, c := range alone {
			if v.UsersOf(p.Namespace, c) > 0 {
				return refused
			}
		}
		return nil
	}}, nil
}
