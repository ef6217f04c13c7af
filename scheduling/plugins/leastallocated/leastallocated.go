// Package leastallocated prefers the node that has the largest part of its CPU
// and memory left once the pod is on it.
package leastallocated

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Plugin is the score.
type Plugin struct{}

// Name of the score.
func (Plugin) Name() string { return "LeastAllocated" }

// Weight of the score.
func (Plugin) Weight() int64 { return 1 }

// Prepare always tells nodes apart.
func (Plugin) Prepare(p *cluster.Pod, _ plugin.View, _ []*cluster.Node) plugin.ScoreFunc {
	want := p.Requests.ForScore()
	return func(n *cluster.Node) int64 {
		return (free(n.Allocatable.MilliCPU, n.ForScore.MilliCPU+want.MilliCPU) +
			free(n.Allocatable.Memory, n.ForScore.Memory+want.Memory)) / 2
	}
}

func free(has, used int64) int64 {
	if has <= 0 || used >= has {
		return 0
	}
	return (has - used) * plugin.MaxScore / has
}
