// Package topologydistance prefers the node nearest to the pods that the pod's
// Services select, so that what talks to each other is on one host, in one rack,
// in one zone. kube-scheduler has no such score.
package topologydistance

import (
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Score is off unless a profile enables it.
type Score struct {
	// Keys are topology keys, nearest first. A pod that shares the first with a
	// node counts as many times as there are keys, one that shares only the last
	// once.
	Keys []string
}

// Name of the score.
func (Score) Name() string { return "TopologyDistance" }

// Prepare concerns pods that a Service selects.
func (s Score) Prepare(p *cluster.Pod, v plugin.View) *plugin.Rating {
	sels := v.ServiceSelectors(p.Pod)
	if len(sels) == 0 {
		return nil
	}
	var ids, keys []string
	for _, sel := range sels {
		ids = append(ids, sel.String())
		keys = append(keys, cluster.SelectorKeys(sel)...)
	}
	selected := func(l labels.Set) bool {
		for _, sel := range sels {
			if sel.Matches(l) {
				return true
			}
		}
		return false
	}
	var over []*cluster.Counter
	for _, key := range s.Keys {
		over = append(over, v.Counter(cluster.CounterSpec{ID: "service|" + key + "|" + p.Namespace + "|" + strings.Join(ids, ";"), Key: key, LabelKeys: keys,
			Weigh: func(k *cluster.Kind) int64 {
				if k.Namespace == p.Namespace && !k.Terminating && selected(k.Labels) {
					return 1
				}
				return 0
			}}))
	}
	return &plugin.Rating{Over: over, Scale: plugin.Between, Of: func(n *cluster.Node) int64 {
		var sum int64
		for _, c := range over {
			k, _ := c.In(n)
			sum += k
		}
		return sum
	}}
}
