package profile

import (
	"strings"
	"testing"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// TestWhatIsUnknownIsRefusedByName: fields, plugins, arguments.
func TestWhatIsUnknownIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct{ config, want string }{
		"field":             {head + "percentageOfNodes: 3", "percentageOfNodes"},
		"kind":              {"apiVersion: v1\nkind: Pod", `"KubeSchedulerConfiguration"`},
		"plugin enabled":    {head + "profiles: [{plugins: {score: {enabled: [{name: Magic}]}}}]", `plugins.score.enabled: plugin "Magic" is unknown; there are DefaultBinder,`},
		"plugin disabled":   {head + "profiles: [{plugins: {multiPoint: {disabled: [{name: Magic}]}}}]", `plugins.multiPoint.disabled: plugin "Magic"`},
		"plugin configured": {head + "profiles: [{pluginConfig: [{name: Magic}]}]", `pluginConfig[0]: plugin "Magic"`},
		"argument":          {head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {magic: 1}}]}]", `NodeResourcesFit: decode args: json: unknown field "magic"`},
		"argument of none":  {head + "profiles: [{pluginConfig: [{name: NodeName, args: {magic: 1}}]}]", `unknown field "magic"`},
		"strategy":          {head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Magic}}}]}]", `scoringStrategy.type "Magic" is unknown`},
		"range":             {head + "profiles: [{percentageOfNodesToScore: 101}]", "percentageOfNodesToScore is 101"},
		"two of a name":     {head + "profiles: [{}, {}]", `schedulerName "default-scheduler" is another profile's already`},
		"shape":             {head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 9, score: 11}]}}}}]}]", "score 11 must be 0 to 10"},
		"extender":          {head + "extenders: [{urlPrefix: 'http://x'}]", "extenders[0]: http://x: extenders are not called by this scheduler"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load([]byte(c.config))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestProfilesHaveTheirPlugins: sets are merged into the defaults.
func TestProfilesHaveTheirPlugins(t *testing.T) {
	c, err := Load([]byte(head + `
profiles:
- schedulerName: one
- schedulerName: two
  percentageOfNodesToScore: 50
  plugins:
    multiPoint:
      disabled: [{name: InterPodAffinity}, {name: DefaultPreemption}]
    filter:
      disabled: [{name: NodePorts}]
    score:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit, weight: 7}, {name: Packing}, {name: TopologyDistance, weight: 2}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	describe := func(i int) string {
		var out []string
		for _, f := range c.Profiles[i].Filters {
			out = append(out, f.Name())
		}
		for _, s := range c.Profiles[i].Scores {
			out = append(out, s.Name()+"*"+strings.Repeat("x", int(s.Weight)))
		}
		return strings.Join(out, " ")
	}
	one := "NodeName NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources" +
		" TaintToleration*xxx NodeAffinity*xx NodeResourcesFit*x PodTopologySpread*xx InterPodAffinity*xx NodeResourcesBalancedAllocation*x ImageLocality*x"
	if got := describe(0); got != one || !c.Profiles[0].Preempts || c.Profiles[0].Name != "one" {
		t.Errorf("one: %s", got)
	}
	two := "NodeName NodeUnschedulable TaintToleration NodeAffinity NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread DynamicResources NodeResourcesFit*xxxxxxx TopologyDistance*xx Packing*x"
	if got := describe(1); got != two || c.Profiles[1].Preempts || c.Profiles[1].Percentage != 50 {
		t.Errorf("two: %s", got)
	}
}
