// Package imagelocality prefers nodes that have the pod's images already.
package imagelocality

import (
	"strings"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Score adds up the sizes of the pod's images that a node has, each weighed by the
// part of all nodes that have it, so that an image that one node has does not draw
// every pod there.
type Score struct{}

// Name of the score.
func (Score) Name() string { return "ImageLocality" }

// Sizes in bytes between which the score rises: kube-scheduler's figures.
const (
	least        = 23 << 20
	mostOfOne    = 1000 << 20
	defaultTag   = ":latest"
	maxPerImages = int64(mostOfOne)
)

// Prepare concerns pods with an image that some node has.
func (Score) Prepare(p *cluster.Pod, v plugin.View) *plugin.Rating {
	var names []string
	for i := range p.Spec.InitContainers {
		names = append(names, normal(p.Spec.InitContainers[i].Image))
	}
	for i := range p.Spec.Containers {
		names = append(names, normal(p.Spec.Containers[i].Image))
	}
	for i := range p.Spec.Volumes {
		if img := p.Spec.Volumes[i].Image; img != nil {
			names = append(names, normal(img.Reference))
		}
	}
	// Each image's share of nodes, as of now: it changes slowly.
	spread := make([]float64, len(names))
	total, any := len(v.Nodes()), false
	for i, n := range names {
		if k := v.ImageNodes(n); k > 0 && total > 0 {
			spread[i], any = float64(k)/float64(total), true
		}
	}
	if !any {
		return nil
	}
	most := maxPerImages * int64(len(names))
	return &plugin.Rating{Of: func(n *cluster.Node) int64 {
		var sum int64
		for i, name := range names {
			sum += int64(float64(n.Images[name]) * spread[i])
		}
		return plugin.MaxScore * (min(max(sum, least), most) - least) / (most - least)
	}}
}

// normal adds the tag that a name without one means.
func normal(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + defaultTag
	}
	return image
}
