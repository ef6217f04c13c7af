// Package volumebinding holds a pod to nodes that can reach its volumes.
package volumebinding

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return "VolumeBinding" }

// Wakes: a node may come or be labelled, a claim may be bound.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.StorageChanged
}

var conflict = &plugin.Reason{Text: "node(s) didn't match PersistentVolume's node affinity"}

// Prepare concerns pods with claims; each must be bound.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (plugin.FilterFunc, *plugin.Reason) {
	var needs []*corev1.NodeSelector
	for i := range p.Spec.Volumes {
		name := claimName(p.Pod, &p.Spec.Volumes[i])
		if name == "" {
			continue
		}
		c := v.Claim(p.Namespace, name)
		switch {
		case c == nil:
			return nil, &plugin.Reason{Text: fmt.Sprintf("persistentvolumeclaim %q not found", name)}
		case c.DeletionTimestamp != nil:
			return nil, &plugin.Reason{Text: fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)}
		case c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName == "":
			return nil, &plugin.Reason{Text: "pod has unbound immediate PersistentVolumeClaims"}
		}
		pv := v.Volume(c.Spec.VolumeName)
		if pv == nil {
			return nil, &plugin.Reason{Text: fmt.Sprintf("persistentvolume %q not found", c.Spec.VolumeName)}
		}
		if pv.Spec.NodeAffinity != nil && pv.Spec.NodeAffinity.Required != nil {
			needs = append(needs, pv.Spec.NodeAffinity.Required)
		}
	}
	if len(needs) == 0 {
		return nil, nil
	}
	return func(n *cluster.Node) *plugin.Reason {
		for _, s := range needs {
			if ok, err := corehelpers.MatchNodeSelectorTerms(n.Node, s); err != nil || !ok {
				return conflict
			}
		}
		return nil
	}, nil
}

// claimName is the claim of a volume; an ephemeral volume's is named after both.
func claimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}
