package noderesources

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Weighed is a resource and what it counts for beside others.
type Weighed struct {
	Name   corev1.ResourceName
	Weight int64
}

// CPUAndMemory, equally, is what scores look at by default.
func CPUAndMemory() []Weighed {
	return []Weighed{{corev1.ResourceCPU, 1}, {corev1.ResourceMemory, 1}}
}

// Strategy says how good a node is of whose resource a part would be used.
type Strategy func(used, has int64) int64

// Least prefers the emptiest node.
func Least(used, has int64) int64 {
	if used > has {
		return 0
	}
	return (has - used) * plugin.MaxScore / has
}

// Most prefers the fullest node.
func Most(used, has int64) int64 { return min(used, has) * plugin.MaxScore / has }

// Point of a function from the used part of a node, in percent, to a score from 0
// to MaxScore.
type Point struct{ Percent, Score int64 }

// Ratio prefers by a function that is given by points of rising Percent, straight
// between them.
func Ratio(points []Point) Strategy {
	return func(used, has int64) int64 {
		pct := min(used, has) * 100 / has
		for i, p := range points {
			if pct <= p.Percent {
				if i == 0 {
					return p.Score
				}
				q := points[i-1]
				return q.Score + (p.Score-q.Score)*(pct-q.Percent)/(p.Percent-q.Percent)
			}
		}
		return points[len(points)-1].Score
	}
}

// FitScore prefers nodes by how full they would be.
type FitScore struct {
	Resources []Weighed
	Strategy  Strategy
	// Skip leaves out resources that the strategy values at 0, as kube-scheduler
	// does for a requested to capacity ratio.
	Skip bool
}

// Name of the score.
func (FitScore) Name() string { return fitName }

// amount of a resource. With nonzero, what a pod does not ask for counts a little.
func amount(r *cluster.Resources, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	}
	return r.Scalars[name]
}

func basic(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

// Prepare always tells nodes apart.
func (s FitScore) Prepare(p *cluster.Pod, _ plugin.View) *plugin.Rating {
	want := p.Requests.ForScore()
	type one struct {
		name         corev1.ResourceName
		want, weight int64
	}
	var each []one
	for _, r := range s.Resources {
		w := amount(&want, r.Name)
		if w == 0 && !basic(r.Name) {
			continue // a pod that asks for no device does not care who has some
		}
		each = append(each, one{r.Name, w, r.Weight})
	}
	if len(each) == 2 && !s.Skip && each[0].name == corev1.ResourceCPU && each[1].name == corev1.ResourceMemory && each[0].weight == each[1].weight {
		return &plugin.Rating{Of: func(n *cluster.Node) int64 {
			if n.Allocatable.MilliCPU <= 0 || n.Allocatable.Memory <= 0 {
				return 0
			}
			return (s.Strategy(n.ForScore.MilliCPU+want.MilliCPU, n.Allocatable.MilliCPU) + s.Strategy(n.ForScore.Memory+want.Memory, n.Allocatable.Memory)) / 2
		}}
	}
	return &plugin.Rating{Of: func(n *cluster.Node) int64 {
		var sum, weights int64
		for _, r := range each {
			has := amount(&n.Allocatable, r.name)
			if has <= 0 {
				continue
			}
			v := s.Strategy(amount(&n.ForScore, r.name)+r.want, has)
			if s.Skip && v == 0 {
				continue
			}
			sum, weights = sum+v*r.weight, weights+r.weight
		}
		if weights == 0 {
			return 0
		}
		return sum / weights
	}}
}

// Balanced prefers nodes on which the pod makes the used parts of the resources
// more equal.
type Balanced struct{ Resources []Weighed }

// Name of the score.
func (Balanced) Name() string { return "NodeResourcesBalancedAllocation" }

// Prepare concerns pods that ask for one of the resources.
func (s Balanced) Prepare(p *cluster.Pod, _ plugin.View) *plugin.Rating {
	type one struct {
		name corev1.ResourceName
		want int64
	}
	var each []one
	asks := false
	for _, r := range s.Resources {
		w := amount(&p.Requests, r.Name)
		asks = asks || w != 0
		if w != 0 || basic(r.Name) {
			each = append(each, one{r.Name, w})
		}
	}
	if !asks {
		return nil
	}
	const half = plugin.MaxScore / 2
	return &plugin.Rating{Of: func(n *cluster.Node) int64 {
		var buf [2][8]float64
		with, without := buf[0][:0], buf[1][:0]
		for _, r := range each {
			has := amount(&n.Allocatable, r.name)
			if has <= 0 {
				continue
			}
			used := amount(&n.Requested, r.name)
			with = append(with, min(float64(used+r.want)/float64(has), 1))
			without = append(without, min(float64(used)/float64(has), 1))
		}
		return half + (half+evenness(with)-evenness(without))/2
	}}
}

// evenness is 100 when all are equal, less by their standard deviation.
func evenness(f []float64) int64 {
	var dev float64
	switch len(f) {
	case 0, 1:
	case 2:
		dev = math.Abs(f[0]-f[1]) / 2
	default:
		var mean float64
		for _, x := range f {
			mean += x
		}
		mean /= float64(len(f))
		for _, x := range f {
			dev += (x - mean) * (x - mean)
		}
		dev = math.Sqrt(dev / float64(len(f)))
	}
	return int64((1 - dev) * plugin.MaxScore)
}

// Packing prefers the node that would have the least left, in its scarcest
// resource and evenly over the resources: what is left elsewhere stays in pieces
// large enough for large pods. kube-scheduler has no such score.
type Packing struct{ Resources []Weighed }

// Name of the score.
func (Packing) Name() string { return "Packing" }

// packingEven is how much of the score the evenness decides, in percent.
const packingEven = 70

// Prepare always tells nodes apart.
func (s Packing) Prepare(p *cluster.Pod, _ plugin.View) *plugin.Rating {
	want := p.Requests.ForScore()
	return &plugin.Rating{Of: func(n *cluster.Node) int64 {
		var buf [8]float64
		used := buf[:0]
		for _, r := range s.Resources {
			if has := amount(&n.Allocatable, r.Name); has > 0 {
				used = append(used, min(float64(amount(&n.ForScore, r.Name)+amount(&want, r.Name))/float64(has), 1))
			}
		}
		if len(used) == 0 {
			return 0
		}
		var fullest float64
		for _, u := range used {
			fullest = max(fullest, u)
		}
		return (int64(fullest*plugin.MaxScore)*(100-packingEven) + evenness(used)*packingEven) / 100
	}}
}
