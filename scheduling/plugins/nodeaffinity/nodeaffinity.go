// Package nodeaffinity holds a pod to nodes that its node selector and its
// required node affinity match, and prefers those that its preferences match.
package nodeaffinity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const name = "NodeAffinity"

// Plugin is the filter. Added is what every pod of the profile requires beside
// its own; nil for nothing.
type Plugin struct{ Added *corev1.NodeAffinity }

// Name of the filter.
func (Plugin) Name() string { return name }

// Wakes: a node may come or be labelled.
func (Plugin) Wakes() plugin.Event { return plugin.NodeAdded | plugin.NodeLabels }

// Helps: the node matches now.
func (Plugin) Helps(p *cluster.Pod, c plugin.Change) bool {
	if c.Node == nil {
		return true
	}
	ok, err := p.Affinity.Match(c.Node.Node)
	return ok && err == nil
}

var (
	refused      = plugin.RefuseFinal(name, "node(s) didn't match Pod's node affinity/selector")
	refusedAdded = plugin.RefuseFinal(name, "node(s) didn't match scheduler-enforced node affinity")
	invalid      = plugin.RefuseFinal(name, "Pod's node affinity cannot be parsed")
)

func required(a *corev1.NodeAffinity) *corev1.NodeSelector {
	if a == nil {
		return nil
	}
	return a.RequiredDuringSchedulingIgnoredDuringExecution
}

// Prepare concerns pods with a selector or a required affinity.
func (f Plugin) Prepare(p *cluster.Pod, _ plugin.View) (*plugin.Check, *plugin.Reason) {
	var own *corev1.NodeAffinity
	if p.Spec.Affinity != nil {
		own = p.Spec.Affinity.NodeAffinity
	}
	if len(p.Spec.NodeSelector) == 0 && required(own) == nil && required(f.Added) == nil {
		return nil, nil
	}
	var added *nodeaffinity.NodeSelector
	if r := required(f.Added); r != nil {
		s, err := nodeaffinity.NewNodeSelector(r)
		if err != nil {
			return nil, plugin.RefuseFinal(name, fmt.Sprintf("the profile's added node affinity cannot be parsed: %v", err))
		}
		added = s
	}
	return &plugin.Check{Fits: func(n *cluster.Node) *plugin.Reason {
		if added != nil && !added.Match(n.Node) {
			return refusedAdded
		}
		ok, err := p.Affinity.Match(n.Node)
		if err != nil {
			return invalid
		}
		if !ok {
			return refused
		}
		return nil
	}}, nil
}

// Score adds up the weights of the preferences that a node matches. Added is as
// in Plugin.
type Score struct{ Added *corev1.NodeAffinity }

// Name of the score.
func (Score) Name() string { return name }

// Prepare concerns pods with preferences.
func (s Score) Prepare(p *cluster.Pod, _ plugin.View) *plugin.Rating {
	var terms []corev1.PreferredSchedulingTerm
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		terms = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if s.Added != nil {
		terms = append(terms[:len(terms):len(terms)], s.Added.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if len(terms) == 0 {
		return nil
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(terms)
	if err != nil {
		return nil // validated when the pod was made: what cannot be read prefers nothing
	}
	return &plugin.Rating{Scale: plugin.Highest, Of: func(n *cluster.Node) int64 { return preferred.Score(n.Node) }}
}
