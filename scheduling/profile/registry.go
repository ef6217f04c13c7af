package profile

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/tripod-cluster/tripod/scheduling/plugin"
	"github.com/tripod-cluster/tripod/scheduling/plugins/dynamicresources"
	"github.com/tripod-cluster/tripod/scheduling/plugins/imagelocality"
	"github.com/tripod-cluster/tripod/scheduling/plugins/interpodaffinity"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodeaffinity"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodename"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodeports"
	"github.com/tripod-cluster/tripod/scheduling/plugins/noderesources"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodeunschedulable"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodevolumelimits"
	"github.com/tripod-cluster/tripod/scheduling/plugins/podtopologyspread"
	"github.com/tripod-cluster/tripod/scheduling/plugins/tainttoleration"
	"github.com/tripod-cluster/tripod/scheduling/plugins/topologydistance"
	"github.com/tripod-cluster/tripod/scheduling/plugins/volumebinding"
	"github.com/tripod-cluster/tripod/scheduling/plugins/volumerestrictions"
	"github.com/tripod-cluster/tripod/scheduling/plugins/volumezone"
)

// Names of plugins that are part of the scheduler itself.
const (
	prioritySort      = "PrioritySort"
	schedulingGates   = "SchedulingGates"
	defaultBinder     = "DefaultBinder"
	defaultPreemption = "DefaultPreemption"
)

// parts are what a plugin is made of; nil for what it is not.
type parts struct {
	filter plugin.Filter
	score  plugin.Score
}

// known is a plugin by its name.
type known struct {
	// weight by default; 0: off unless a profile enables it.
	weight int64
	off    bool
	// make builds it from its arguments, which are JSON, nil for the defaults.
	make func(args []byte) (parts, error)
}

// order of the plugins by default: filters judge in it.
var order = []string{
	schedulingGates, prioritySort, "NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
	"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity", "DynamicResources", defaultPreemption,
	"NodeResourcesBalancedAllocation", "ImageLocality", defaultBinder, "TopologyDistance", "Packing",
}

// TopologyDistanceArgs are the arguments of TopologyDistance.
type TopologyDistanceArgs struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// Keys are topology keys, nearest first.
	Keys []string `json:"keys,omitempty"`
}

// PackingArgs are the arguments of Packing.
type PackingArgs struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// Resources by name; default cpu and memory.
	Resources []string `json:"resources,omitempty"`
}

func plain(p parts) func([]byte) (parts, error) {
	return func(args []byte) (parts, error) {
		var none struct {
			APIVersion string `json:"apiVersion,omitempty"`
			Kind       string `json:"kind,omitempty"`
		}
		return p, decode(args, &none)
	}
}

var registry = map[string]known{
	schedulingGates: {make: plain(parts{})},
	prioritySort:    {make: plain(parts{})},
	defaultBinder:   {make: plain(parts{})},
	defaultPreemption: {make: func(args []byte) (parts, error) {
		_, err := preemptionArgs(args)
		return parts{}, err
	}},
	"NodeName":           {make: plain(parts{filter: nodename.Plugin{}})},
	"NodeUnschedulable":  {make: plain(parts{filter: nodeunschedulable.Plugin{}})},
	"TaintToleration":    {weight: 3, make: plain(parts{tainttoleration.Plugin{}, tainttoleration.Score{}})},
	"NodePorts":          {make: plain(parts{filter: nodeports.Plugin{}})},
	"DynamicResources":   {make: plain(parts{filter: dynamicresources.Plugin{}})},
	"VolumeRestrictions": {make: plain(parts{filter: volumerestrictions.Plugin{}})},
	"NodeVolumeLimits":   {make: plain(parts{filter: nodevolumelimits.Plugin{}})},
	"VolumeZone":         {make: plain(parts{filter: volumezone.Plugin{}})},
	"ImageLocality":      {weight: 1, make: plain(parts{score: imagelocality.Score{}})},
	"VolumeBinding": {make: func(args []byte) (parts, error) {
		var a configv1.VolumeBindingArgs
		if err := decode(args, &a); err != nil {
			return parts{}, err
		}
		timeout := int64(600)
		if a.BindTimeoutSeconds != nil {
			timeout = *a.BindTimeoutSeconds
		}
		if timeout < 0 {
			return parts{}, fmt.Errorf("bindTimeoutSeconds is %d, must not be negative", timeout)
		}
		return parts{filter: volumebinding.Plugin{Timeout: timeout}}, nil
	}},
	"NodeAffinity": {weight: 2, make: func(args []byte) (parts, error) {
		var a configv1.NodeAffinityArgs
		if err := decode(args, &a); err != nil {
			return parts{}, err
		}
		return parts{nodeaffinity.Plugin{Added: a.AddedAffinity}, nodeaffinity.Score{Added: a.AddedAffinity}}, nil
	}},
	"NodeResourcesFit": {weight: 1, make: fit},
	"NodeResourcesBalancedAllocation": {weight: 1, make: func(args []byte) (parts, error) {
		var a configv1.NodeResourcesBalancedAllocationArgs
		if err := decode(args, &a); err != nil {
			return parts{}, err
		}
		r, err := weighed(a.Resources)
		if err == nil && slices.ContainsFunc(r, func(w noderesources.Weighed) bool { return w.Weight != 1 }) {
			err = fmt.Errorf("resources: each weight must be 1")
		}
		return parts{score: noderesources.Balanced{Resources: r}}, err
	}},
	"PodTopologySpread": {weight: 2, make: spread},
	"InterPodAffinity": {weight: 2, make: func(args []byte) (parts, error) {
		var a configv1.InterPodAffinityArgs
		if err := decode(args, &a); err != nil {
			return parts{}, err
		}
		w := int32(1)
		if a.HardPodAffinityWeight != nil {
			w = *a.HardPodAffinityWeight
		}
		if w < 0 || w > 100 {
			return parts{}, fmt.Errorf("hardPodAffinityWeight is %d, must be 0 to 100", w)
		}
		return parts{interpodaffinity.Plugin{}, interpodaffinity.Score{HardWeight: int64(w), IgnoreExisting: a.IgnorePreferredTermsOfExistingPods}}, nil
	}},
	"TopologyDistance": {weight: 1, off: true, make: func(args []byte) (parts, error) {
		var a TopologyDistanceArgs
		if err := decode(args, &a); err != nil {
			return parts{}, err
		}
		if len(a.Keys) == 0 {
			a.Keys = []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}
		}
		return parts{score: topologydistance.Score{Keys: a.Keys}}, nil
	}},
	"Packing": {weight: 1, off: true, make: func(args []byte) (parts, error) {
		var a PackingArgs
		if err := decode(args, &a); err != nil {
			return parts{}, err
		}
		var names []noderesources.Weighed
		for _, n := range a.Resources {
			names = append(names, noderesources.Weighed{Name: corev1.ResourceName(n), Weight: 1})
		}
		if names == nil {
			names = noderesources.CPUAndMemory()
		}
		if len(names) > 8 {
			return parts{}, fmt.Errorf("resources: %d given, at most 8 are possible", len(names))
		}
		return parts{score: noderesources.Packing{Resources: names}}, nil
	}},
}

// Plugins are the names of all plugins.
func Plugins() []string { return slices.Sorted(maps.Keys(registry)) }

func weighed(rs []configv1.ResourceSpec) ([]noderesources.Weighed, error) {
	if len(rs) == 0 {
		return noderesources.CPUAndMemory(), nil
	}
	if len(rs) > 8 {
		return nil, fmt.Errorf("resources: %d given, at most 8 are possible", len(rs))
	}
	var out []noderesources.Weighed
	for _, r := range rs {
		w := r.Weight
		if w == 0 {
			w = 1
		}
		if w < 1 || w > 100 {
			return nil, fmt.Errorf("resources: weight of %s is %d, must be 1 to 100", r.Name, w)
		}
		out = append(out, noderesources.Weighed{Name: corev1.ResourceName(r.Name), Weight: w})
	}
	return out, nil
}

func fit(args []byte) (parts, error) {
	var a configv1.NodeResourcesFitArgs
	if err := decode(args, &a); err != nil {
		return parts{}, err
	}
	filter := noderesources.Fit{Ignored: sets.New(a.IgnoredResources...), IgnoredGroups: sets.New(a.IgnoredResourceGroups...)}
	score := noderesources.FitScore{Strategy: noderesources.Least}
	var resources []configv1.ResourceSpec
	if s := a.ScoringStrategy; s != nil {
		resources = s.Resources
		switch s.Type {
		case configv1.LeastAllocated, "":
		case configv1.MostAllocated:
			score.Strategy = noderesources.Most
		case configv1.RequestedToCapacityRatio:
			if s.RequestedToCapacityRatio == nil {
				return parts{}, fmt.Errorf("scoringStrategy.requestedToCapacityRatio is required for that type")
			}
			points, err := shape(s.RequestedToCapacityRatio.Shape)
			if err != nil {
				return parts{}, fmt.Errorf("scoringStrategy.requestedToCapacityRatio: %w", err)
			}
			score.Strategy, score.Skip = noderesources.Ratio(points), true
		default:
			return parts{}, fmt.Errorf("scoringStrategy.type %q is unknown; it is LeastAllocated, MostAllocated or RequestedToCapacityRatio", s.Type)
		}
	}
	var err error
	score.Resources, err = weighed(resources)
	return parts{filter, score}, err
}

// shape reads the points of a function: scores are 0 to 10 there.
func shape(ps []configv1.UtilizationShapePoint) ([]noderesources.Point, error) {
	if len(ps) == 0 {
		return nil, fmt.Errorf("shape needs at least one point")
	}
	var out []noderesources.Point
	last := int32(math.MinInt32)
	for _, p := range ps {
		switch {
		case p.Utilization < 0 || p.Utilization > 100 || p.Utilization <= last:
			return nil, fmt.Errorf("shape: utilization %d must be 0 to 100 and rise from point to point", p.Utilization)
		case p.Score < 0 || p.Score > 10:
			return nil, fmt.Errorf("shape: score %d must be 0 to 10", p.Score)
		}
		last = p.Utilization
		out = append(out, noderesources.Point{Percent: int64(p.Utilization), Score: int64(p.Score) * plugin.MaxScore / 10})
	}
	return out, nil
}

func spread(args []byte) (parts, error) {
	var a configv1.PodTopologySpreadArgs
	if err := decode(args, &a); err != nil {
		return parts{}, err
	}
	switch a.DefaultingType {
	case configv1.SystemDefaulting, "":
		if len(a.DefaultConstraints) > 0 {
			return parts{}, fmt.Errorf("defaultConstraints need defaultingType List")
		}
		return parts{podtopologyspread.Plugin{}, podtopologyspread.Score{Defaults: podtopologyspread.SystemDefaults(), System: true}}, nil
	case configv1.ListDefaulting:
	default:
		return parts{}, fmt.Errorf("defaultingType %q is unknown; it is System or List", a.DefaultingType)
	}
	for i, c := range a.DefaultConstraints {
		switch {
		case c.LabelSelector != nil:
			return parts{}, fmt.Errorf("defaultConstraints[%d]: a labelSelector is not allowed: it comes from the pods' owners", i)
		case c.MaxSkew < 1 || c.TopologyKey == "":
			return parts{}, fmt.Errorf("defaultConstraints[%d]: maxSkew must be at least 1, topologyKey not empty", i)
		case c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway:
			return parts{}, fmt.Errorf("defaultConstraints[%d]: whenUnsatisfiable is DoNotSchedule or ScheduleAnyway", i)
		}
	}
	return parts{podtopologyspread.Plugin{Defaults: a.DefaultConstraints}, podtopologyspread.Score{Defaults: a.DefaultConstraints}}, nil
}

func preemptionArgs(args []byte) (configv1.DefaultPreemptionArgs, error) {
	pct, least := int32(10), int32(100)
	var a configv1.DefaultPreemptionArgs
	if err := decode(args, &a); err != nil {
		return a, err
	}
	if a.MinCandidateNodesPercentage == nil {
		a.MinCandidateNodesPercentage = &pct
	}
	if a.MinCandidateNodesAbsolute == nil {
		a.MinCandidateNodesAbsolute = &least
	}
	switch {
	case *a.MinCandidateNodesPercentage < 0 || *a.MinCandidateNodesPercentage > 100:
		return a, fmt.Errorf("minCandidateNodesPercentage is %d, must be 0 to 100", *a.MinCandidateNodesPercentage)
	case *a.MinCandidateNodesAbsolute < 0 || *a.MinCandidateNodesPercentage == 0 && *a.MinCandidateNodesAbsolute == 0:
		return a, fmt.Errorf("minCandidateNodesAbsolute is %d, must be above 0 where the percentage is not", *a.MinCandidateNodesAbsolute)
	}
	return a, nil
}
