package volumebinding

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "VolumeBinding"

// Plugin is the filter, and reserves volumes.
type Plugin struct {
	// Timeout bounds the wait for claims to be bound, in seconds.
	Timeout int64
}

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come or be labelled, a claim may be bound.
func (Plugin) Wakes() plugin.Event {
	return plugin.NodeAdded | plugin.NodeLabels | plugin.StorageChanged
}

var (
	conflict  = plugin.RefuseFinal(name, "node(s) didn't match PersistentVolume's node affinity")
	notFound  = plugin.RefuseFinal(name, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
	noVolume  = plugin.RefuseFinal(name, "node(s) didn't find available persistent volumes to bind")
	noStorage = plugin.RefuseFinal(name, "node(s) did not have enough free storage")
)

const (
	noProvisioner = "kubernetes.io/no-provisioner"
	unbound       = "pod has unbound immediate PersistentVolumeClaims"
)

// needs are the claims of a pod, by what they still need.
type needs struct {
	bound   []*corev1.PersistentVolume
	missing bool                            // a bound claim's volume is not there
	delayed []*corev1.PersistentVolumeClaim // wait for their first consumer
}

// read sorts the pod's claims; the text says why the pod cannot be placed at all.
func read(p *corev1.Pod, o plugin.Objects) (n needs, text string) {
	for i := range p.Spec.Volumes {
		vol := &p.Spec.Volumes[i]
		claim := cluster.ClaimName(p, vol)
		if claim == "" {
			continue
		}
		c := o.Claim(p.Namespace, claim)
		switch {
		case c == nil && vol.Ephemeral != nil:
			return n, fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", claim)
		case c == nil:
			return n, fmt.Sprintf("persistentvolumeclaim %q not found", claim)
		case c.DeletionTimestamp != nil:
			return n, fmt.Sprintf("persistentvolumeclaim %q is being deleted", claim)
		case c.Status.Phase == corev1.ClaimLost:
			return n, fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim, c.Spec.VolumeName)
		}
		if vol.Ephemeral != nil {
			if err := ephemeral.VolumeIsForPod(p, c); err != nil {
				return n, err.Error()
			}
		}
		if isBound(c) {
			if pv := o.Volume(c.Spec.VolumeName); pv != nil {
				n.bound = append(n.bound, pv)
			} else {
				n.missing = true
			}
			continue
		}
		class := o.StorageClass(volume.GetPersistentVolumeClaimClass(c))
		if c.Spec.VolumeName != "" || class == nil || class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
			return n, unbound
		}
		n.delayed = append(n.delayed, c)
	}
	return n, ""
}

func isBound(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && metav1.HasAnnotation(c.ObjectMeta, volume.AnnBindCompleted)
}

// Prepare concerns pods with claims.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View) (*plugin.Check, *plugin.Reason) {
	if len(p.Claims) == 0 {
		return nil, nil
	}
	n, text := read(p.Pod, v)
	if text != "" {
		return nil, plugin.RefuseFinal(name, text)
	}
	return &plugin.Check{Fits: func(node *cluster.Node) *plugin.Reason {
		if n.missing {
			return notFound
		}
		for _, pv := range n.bound {
			if volume.CheckNodeAffinity(pv, node.Labels) != nil {
				return conflict
			}
		}
		_, r := n.find(node, v)
		return r
	}}, nil
}

// found is what a node offers for the claims that wait.
type found struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume // nil: it is to be provisioned
}

// find matches the claims that wait with volumes that the node can reach, the
// smallest that do, and otherwise with what can be provisioned there.
func (n *needs) find(node *cluster.Node, o plugin.Objects) ([]found, *plugin.Reason) {
	if len(n.delayed) == 0 {
		return nil, nil
	}
	held := o.Held()
	taken := map[string]*corev1.PersistentVolume{}
	all := o.Volumes()
	var out []found
	for _, c := range n.delayed {
		key := c.Namespace + "/" + c.Name
		exclude := map[string]*corev1.PersistentVolume{}
		for pv := range taken {
			exclude[pv] = nil
		}
		for pv, claim := range held.Volumes {
			if claim != key {
				exclude[pv] = nil
			}
		}
		selected := c.Annotations[volume.AnnSelectedNode]
		if selected == "" {
			pv, err := volume.FindMatchingVolume(c, all, node.Node, exclude, true, true)
			if err != nil {
				return nil, plugin.RefuseFinal(name, err.Error())
			}
			if pv != nil {
				taken[pv.Name] = pv
				out = append(out, found{c, pv})
				continue
			}
		} else if selected != node.Name {
			return nil, noVolume // it is being provisioned for another node
		}
		if r := provisionable(c, node, o); r != nil {
			return nil, r
		}
		out = append(out, found{claim: c})
	}
	return out, nil
}

func provisionable(c *corev1.PersistentVolumeClaim, node *cluster.Node, o plugin.Objects) *plugin.Reason {
	class := o.StorageClass(volume.GetPersistentVolumeClaimClass(c))
	if class == nil || class.Provisioner == "" || class.Provisioner == noProvisioner || !allowed(class.AllowedTopologies, node.Labels) {
		return noVolume
	}
	d := o.CSIDriver(class.Provisioner)
	if d == nil || d.Spec.StorageCapacity == nil || !*d.Spec.StorageCapacity {
		return nil
	}
	want := c.Spec.Resources.Requests[corev1.ResourceStorage]
	for _, k := range o.CSICapacities(class.Name) {
		size := k.Capacity
		if k.MaximumVolumeSize != nil {
			size = k.MaximumVolumeSize
		}
		if size == nil || size.Cmp(want) < 0 || k.NodeTopology == nil {
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(k.NodeTopology); err == nil && s.Matches(labels.Set(node.Labels)) {
			return nil
		}
	}
	return noStorage
}

// allowed says whether one of the terms, if there are any, matches the labels.
func allowed(terms []corev1.TopologySelectorTerm, l map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			if v, ok := l[e.Key]; !ok || !slices.Contains(e.Values, v) {
				return false
			}
		}
		return len(t.MatchLabelExpressions) > 0
	})
}
