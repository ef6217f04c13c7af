// Package ownerspread prefers nodes, and then zones, with the fewest pods of the
// same owner, so that the loss of one takes few replicas along.
package ownerspread

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the score.
type Plugin struct{}

// Name of the score.
func (Plugin) Name() string { return "OwnerSpread" }

// Weight is above LeastAllocated's: replicas apart are worth more than nodes
// filled evenly.
func (Plugin) Weight() int64 { return 2 }

// zoneShare is how much of the score the zone decides, in percent.
const zoneShare = 60

// Prepare counts the owner's pods by node and zone.
func (Plugin) Prepare(p *cluster.Pod, v plugin.View, fit []*cluster.Node) plugin.ScoreFunc {
	if p.Owner == "" || len(fit) < 2 {
		return nil
	}
	byNode, byZone := map[string]int64{}, map[string]int64{}
	for _, n := range v.Nodes() {
		var c int64
		for _, q := range n.Pods {
			if q.Owner == p.Owner && q.Namespace == p.Namespace && q.DeletionTimestamp == nil {
				c++
			}
		}
		byNode[n.Name] = c
		byZone[n.Labels[corev1.LabelTopologyZone]] += c
	}
	var mostNode, mostZone int64
	zones := map[string]bool{}
	for _, n := range fit {
		z := n.Labels[corev1.LabelTopologyZone]
		zones[z] = true
		mostNode, mostZone = max(mostNode, byNode[n.Name]), max(mostZone, byZone[z])
	}
	return func(n *cluster.Node) int64 {
		s := few(byNode[n.Name], mostNode)
		if len(zones) > 1 {
			s = (s*(100-zoneShare) + few(byZone[n.Labels[corev1.LabelTopologyZone]], mostZone)*zoneShare) / 100
		}
		return s
	}
}

func few(count, most int64) int64 {
	if most == 0 {
		return plugin.MaxScore
	}
	return (most - count) * plugin.MaxScore / most
}
