// Package nodevolumelimits keeps pods off nodes to which a CSI driver can attach
// no more volumes.
package nodevolumelimits

import (
	"strings"

	"k8s.io/component-helpers/storage/volume"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "NodeVolumeLimits"

// Plugin is the filter.
type Plugin struct{}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come, a pod may go, a driver may allow more.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.PodRemoved | plugin.StorageChanged
}

// Helps: the pod that went had volumes.
func (Plugin) Helps(_ *cluster.Pod, c plugin.Change) bool {
	return c.Pod == nil || len(c.Pod.Claims) > 0
}

var refused = plugin.Refuse(name, "node(s) exceed max volume count")

// attached is a volume of a driver.
type attached struct{ driver, volume string }

// of is the CSI volume of a claim; one that is not provisioned yet is one of its
// own.
func of(claim string, v plugin.View) (attached, bool) {
	namespace, base, _ := strings.Cut(claim, "/")
	c := v.Claim(namespace, base)
	if c == nil {
		return attached{}, false
	}
	if c.Spec.VolumeName != "" {
		if pv := v.Volume(c.Spec.VolumeName); pv != nil {
			if pv.Spec.CSI == nil {
				return attached{}, false
			}
			return attached{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle}, true
		}
	}
	if class := v.StorageClass(volume.GetPersistentVolumeClaimClass(c)); class != nil {
		return attached{class.Provisioner, claim}, true
	}
	return attached{}, false
}

// Prepare concerns pods with claims.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (*plugin.Check, *plugin.Reason) {
	want := map[attached]bool{}
	for _, c := range p.Claims {
		if a, ok := of(c, v); ok {
			want[a] = true
		}
	}
	if len(want) == 0 {
		return nil, nil
	}
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		cn := v.CSINode(n.Name)
		if cn == nil {
			return nil
		}
		limits := map[string]int{}
		for _, d := range cn.Spec.Drivers {
			if d.Allocatable != nil && d.Allocatable.Count != nil {
				limits[d.Name] = int(*d.Allocatable.Count)
			}
		}
		if len(limits) == 0 {
			return nil
		}
		all := map[attached]bool{}
		for _, q := range n.Pods {
			for _, c := range q.Claims {
				if a, ok := of(c, v); ok {
					all[a] = true
				}
			}
		}
		for _, a := range v.Attachments(n.Name) {
			if pv := a.Spec.Source.PersistentVolumeName; pv != nil {
				if x := v.Volume(*pv); x != nil && x.Spec.CSI != nil {
					all[attached{x.Spec.CSI.Driver, x.Spec.CSI.VolumeHandle}] = true
				}
			}
		}
		count, more := map[string]int{}, map[string]int{}
		for a := range all {
			count[a.driver]++
		}
		for a := range want {
			if !all[a] {
				more[a.driver]++
			}
		}
		for driver, k := range more {
			if limit, ok := limits[driver]; ok && count[driver]+k > limit {
				return refused
			}
		}
		return nil
	}}, nil
}
