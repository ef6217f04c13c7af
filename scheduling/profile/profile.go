// Package profile reads how pods are to be placed: a KubeSchedulerConfiguration,
// as kube-scheduler reads it, becomes engine.Profiles. What it does not know it
// refuses by name.
package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/tripod-cluster/tripod/scheduling/engine"
)

// Config is a whole configuration.
type Config struct {
	Profiles []*engine.Profile
	// BackoffFirst and BackoffMost are the pauses after a failed attempt.
	BackoffFirst, BackoffMost time.Duration
	// Source is the configuration as it was read, for what concerns a process and
	// not a decision: client, leader election.
	Source configv1.KubeSchedulerConfiguration
}

// Default is the configuration of one profile, default-scheduler.
func Default() *Config {
	c, err := build(&configv1.KubeSchedulerConfiguration{})
	if err != nil {
		panic(err) // a test builds it
	}
	return c
}

// LoadFile reads a file, see Load.
func LoadFile(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	c, err := Load(b)
	if err != nil {
		return nil, fmt.Errorf("scheduler configuration %s: %w", path, err)
	}
	return c, nil
}

// Load reads a KubeSchedulerConfiguration in YAML or JSON. An error names the
// field or plugin that is wrong.
func Load(b []byte) (*Config, error) {
	var c configv1.KubeSchedulerConfiguration
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if c.APIVersion != configv1.SchemeGroupVersion.String() || c.Kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("apiVersion and kind are %q and %q, must be %q and %q", c.APIVersion, c.Kind, configv1.SchemeGroupVersion, "KubeSchedulerConfiguration")
	}
	return build(&c)
}

func build(c *configv1.KubeSchedulerConfiguration) (*Config, error) {
	out := &Config{BackoffFirst: time.Second, BackoffMost: 10 * time.Second, Source: *c}
	if s := c.PodInitialBackoffSeconds; s != nil {
		out.BackoffFirst = time.Duration(*s) * time.Second
	}
	if s := c.PodMaxBackoffSeconds; s != nil {
		out.BackoffMost = time.Duration(*s) * time.Second
	}
	if out.BackoffFirst <= 0 || out.BackoffMost < out.BackoffFirst {
		return nil, fmt.Errorf("podInitialBackoffSeconds must be above 0 and podMaxBackoffSeconds not below it, are %v and %v", out.BackoffFirst, out.BackoffMost)
	}
	profiles := c.Profiles
	if len(profiles) == 0 {
		profiles = []configv1.KubeSchedulerProfile{{}}
	}
	for i := range profiles {
		p, err := one(&profiles[i], c)
		if err != nil {
			return nil, fmt.Errorf("profiles[%d]: %w", i, err)
		}
		if slices.ContainsFunc(out.Profiles, func(q *engine.Profile) bool { return q.Name == p.Name }) {
			return nil, fmt.Errorf("profiles[%d]: schedulerName %q is another profile's already", i, p.Name)
		}
		out.Profiles = append(out.Profiles, p)
	}
	if len(c.Extenders) > 0 {
		return nil, fmt.Errorf("extenders[0]: %s: extenders are not called by this scheduler", c.Extenders[0].URLPrefix)
	}
	return out, nil
}

func one(p *configv1.KubeSchedulerProfile, c *configv1.KubeSchedulerConfiguration) (*engine.Profile, error) {
	out := &engine.Profile{Name: corev1.DefaultSchedulerName}
	if p.SchedulerName != nil {
		out.Name = *p.SchedulerName
	}
	if out.Name == "" {
		return nil, fmt.Errorf("schedulerName must not be empty")
	}
	for _, pct := range []*int32{c.PercentageOfNodesToScore, p.PercentageOfNodesToScore} {
		if pct == nil {
			continue
		}
		if *pct < 0 || *pct > 100 {
			return nil, fmt.Errorf("percentageOfNodesToScore is %d, must be 0 to 100", *pct)
		}
		out.Percentage = int(*pct)
	}
	args := map[string][]byte{}
	for i, pc := range p.PluginConfig {
		if _, ok := registry[pc.Name]; !ok {
			return nil, fmt.Errorf("pluginConfig[%d]: %w", i, unknown(pc.Name))
		}
		if _, twice := args[pc.Name]; twice {
			return nil, fmt.Errorf("pluginConfig[%d]: plugin %s is configured twice", i, pc.Name)
		}
		args[pc.Name] = pc.Args.Raw
	}
	sel, err := selected(p.Plugins)
	if err != nil {
		return nil, err
	}
	for _, name := range sel.names {
		at, err := registry[name].make(args[name])
		if err != nil {
			return nil, fmt.Errorf("pluginConfig of %s: %w", name, err)
		}
		if at.filter != nil && sel.filter[name] {
			out.Filters = append(out.Filters, at.filter)
		}
		if w := sel.weight[name]; at.score != nil && w > 0 {
			out.Scores = append(out.Scores, engine.Weighted{Score: at.score, Weight: w})
		}
	}
	pre, err := preemptionArgs(args[defaultPreemption])
	if err != nil {
		return nil, fmt.Errorf("pluginConfig of %s: %w", defaultPreemption, err)
	}
	out.Preempts = sel.preempts
	out.CandidatesPercent, out.CandidatesLeast = int(*pre.MinCandidateNodesPercentage), int(*pre.MinCandidateNodesAbsolute)
	return out, nil
}

func unknown(name string) error {
	return fmt.Errorf("plugin %q is unknown; there are %s", name, strings.Join(Plugins(), ", "))
}

// selection says which plugins are on at which point.
type selection struct {
	names    []string // in order
	filter   map[string]bool
	weight   map[string]int64 // of the score; 0: off
	preempts bool
}

// selected merges the profile's sets into the defaults. Points other than filter,
// score and postFilter are parts of the same plugin here: they are on when the
// plugin is.
func selected(ps *configv1.Plugins) (*selection, error) {
	s := &selection{filter: map[string]bool{}, weight: map[string]int64{}, preempts: true}
	for _, n := range order {
		s.names = append(s.names, n)
		if !registry[n].off {
			s.filter[n], s.weight[n] = true, registry[n].weight
		}
	}
	if ps == nil {
		return s, nil
	}
	sets := []struct {
		name string
		set  configv1.PluginSet
		all  bool
	}{
		{"multiPoint", ps.MultiPoint, true}, {"filter", ps.Filter, false}, {"score", ps.Score, false}, {"postFilter", ps.PostFilter, false},
		{"preEnqueue", ps.PreEnqueue, false}, {"queueSort", ps.QueueSort, false}, {"preFilter", ps.PreFilter, false}, {"preScore", ps.PreScore, false},
		{"reserve", ps.Reserve, false}, {"permit", ps.Permit, false}, {"preBind", ps.PreBind, false}, {"bind", ps.Bind, false}, {"postBind", ps.PostBind, false},
		{"placementGenerate", ps.PlacementGenerate, false}, {"placementScore", ps.PlacementScore, false}, {"podGroupPostFilter", ps.PodGroupPostFilter, false},
	}
	for _, x := range sets {
		for _, d := range x.set.Disabled {
			if _, ok := registry[d.Name]; !ok && d.Name != "*" {
				return nil, fmt.Errorf("plugins.%s.disabled: %w", x.name, unknown(d.Name))
			}
			for _, n := range order {
				if d.Name != "*" && d.Name != n {
					continue
				}
				if x.all || x.name == "filter" {
					s.filter[n] = false
				}
				if x.all || x.name == "score" {
					s.weight[n] = 0
				}
				if (x.all || x.name == "postFilter") && n == defaultPreemption {
					s.preempts = false
				}
			}
		}
		for _, e := range x.set.Enabled {
			k, ok := registry[e.Name]
			if !ok {
				return nil, fmt.Errorf("plugins.%s.enabled: %w", x.name, unknown(e.Name))
			}
			w := max(k.weight, 1)
			if e.Weight != nil && *e.Weight != 0 {
				w = int64(*e.Weight)
			}
			if w < 0 || w > 1<<20 {
				return nil, fmt.Errorf("plugins.%s.enabled: weight of %s is %d, must be 1 to %d", x.name, e.Name, w, 1<<20)
			}
			if x.all || x.name == "filter" {
				s.filter[e.Name] = true
			}
			if x.all || x.name == "score" {
				s.weight[e.Name] = w
			}
			if (x.all || x.name == "postFilter") && e.Name == defaultPreemption {
				s.preempts = true
			}
		}
	}
	return s, nil
}

// decode reads a plugin's arguments; what they do not know is refused.
func decode(args []byte, to any) error {
	if len(args) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("decode args: %w", err)
	}
	return nil
}
