// Package config is noded's configuration file, /etc/noded/noded.yaml: what an
// operator decides. What noded writes itself is under /var/lib/noded.
//
// Every key has a default; a key that is not known is refused by name. The file
// that ships in the package shows every key with its default, commented; a test
// keeps it in step with Default.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Path is where the configuration is read from by default.
const Path = "/etc/noded/noded.yaml"

// Config is the whole file.
type Config struct {
	// NodeName is the Node's name. Empty: what the node joined as, at joining
	// the host's name in lower case.
	NodeName string `json:"nodeName"`
	// NodeIP is the address by which other nodes reach this one. Empty: the
	// first address of the interface that leads to the API.
	NodeIP string            `json:"nodeIP"`
	Labels map[string]string `json:"labels"`
	// Taints are KEY=VALUE:EFFECT or KEY:EFFECT, set when the node registers first.
	Taints []string `json:"taints"`

	// Capacity replaces what is measured: cpu, memory, ephemeral-storage.
	Capacity map[string]Value `json:"capacity"`
	// SystemReserved is kept from pods: cpu, memory, ephemeral-storage.
	SystemReserved map[string]Value `json:"systemReserved"`
	MaxPods        int              `json:"maxPods"`

	ClusterDNS    []string `json:"clusterDNS"`
	ClusterDomain string   `json:"clusterDomain"`
	ClusterCIDR   string   `json:"clusterCIDR"` // all pods of the cluster
	ServiceCIDR   string   `json:"serviceCIDR"`
	PodCIDR       string   `json:"podCIDR"` // this node's pods; empty: what the cluster assigns

	Network Network `json:"network"`
	Proxy   Proxy   `json:"proxy"`

	StateDir     string `json:"stateDir"`
	ImagesDir    string `json:"imagesDir"`
	CRIEndpoint  string `json:"criEndpoint"`
	CgroupDriver string `json:"cgroupDriver"`
	SandboxImage string `json:"sandboxImage"`

	Address    string `json:"address"` // that the node's API listens on; empty: all
	Port       int    `json:"port"`
	HealthPort int    `json:"healthPort"` // on 127.0.0.1
	LogLevel   string `json:"logLevel"`   // debug, info, warn, error
}

// Network is the built-in pod network.
type Network struct {
	Mode       string   `json:"mode"`  // auto, none
	MTU        int      `json:"mtu"`   // of pods; 0: from the host's interface
	VXLAN      string   `json:"vxlan"` // auto, always, never
	VXLANPort  int      `json:"vxlanPort"`
	CNIConfDir string   `json:"cniConfDir"`
	CNIBinDirs []string `json:"cniBinDirs"`
}

// Proxy is how Services are programmed.
type Proxy struct {
	Mode              string   `json:"mode"`      // iptables, ipvs
	Scheduler         string   `json:"scheduler"` // of ipvs: rr, wrr, lc, sh
	MasqueradeAll     bool     `json:"masqueradeAll"`
	MasqueradeBit     int      `json:"masqueradeBit"`
	NodePortAddresses []string `json:"nodePortAddresses"`
}

// Value is a quantity as the file has it: a string, or a number without quotes.
type Value string

// UnmarshalJSON takes a string or a number.
func (v *Value) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*v = Value(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("%s is not a quantity such as 2 or 4Gi", b)
	}
	*v = Value(n)
	return nil
}

// Default is the configuration of an empty file.
func Default() Config {
	return Config{
		Labels: map[string]string{}, Taints: []string{}, Capacity: map[string]Value{}, SystemReserved: map[string]Value{},
		MaxPods: 110, ClusterDNS: []string{}, ClusterDomain: "cluster.local",
		ClusterCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16",
		Network: Network{Mode: "auto", VXLAN: "auto", VXLANPort: 8472, CNIConfDir: "/etc/cni/net.d", CNIBinDirs: []string{"/usr/lib/cni", "/opt/cni/bin"}},
		Proxy:   Proxy{Mode: "iptables", Scheduler: "rr", MasqueradeBit: 14, NodePortAddresses: []string{}},

		StateDir: "/var/lib/noded", ImagesDir: "/var/lib/noded/images",
		CRIEndpoint: "unix:///run/containerd/containerd.sock", CgroupDriver: "auto", SandboxImage: "tripod.local/pause:1",
		Port: 10250, HealthPort: 10248, LogLevel: "info",
	}
}

// Load reads path over the defaults and checks it. A missing file is the
// defaults only where optional says so.
func Load(path string, optional bool) (Config, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && optional {
		return Default(), nil
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(b)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads YAML over the defaults and checks it.
func Parse(b []byte) (Config, error) {
	c := Default()
	j, err := yaml.YAMLToJSONStrict(b) // refuses a key given twice
	if err != nil {
		return Config{}, err
	}
	// Case-sensitive, and unknown keys are named with the section they are in.
	strict, err := kjson.UnmarshalStrict(j, &c)
	if err != nil {
		return Config{}, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if len(strict) > 0 {
		return Config{}, fmt.Errorf("%w: `noded config --defaults` shows every key", errors.Join(strict...))
	}
	return c, c.validate()
}

// YAML is the configuration as a file would have it.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c) }

func (c Config) validate() error {
	var errs []error
	bad := func(key, format string, args ...any) { errs = append(errs, fmt.Errorf(key+": "+format, args...)) }
	oneOf := func(key, v string, choices ...string) {
		for _, o := range choices {
			if v == o {
				return
			}
		}
		bad(key, "%q is not one of %s", v, strings.Join(choices, ", "))
	}
	if c.NodeName != "" {
		for _, e := range validation.IsDNS1123Subdomain(c.NodeName) {
			bad("nodeName", "%q: %s", c.NodeName, e)
		}
	}
	if c.NodeIP != "" {
		if _, err := netip.ParseAddr(c.NodeIP); err != nil {
			bad("nodeIP", "%q is not an IP address", c.NodeIP)
		}
	}
	for key, v := range map[string]string{"clusterCIDR": c.ClusterCIDR, "serviceCIDR": c.ServiceCIDR} {
		if _, err := netip.ParsePrefix(v); err != nil {
			bad(key, "%q is not an address range such as 10.244.0.0/16", v)
		}
	}
	if c.PodCIDR != "" {
		if _, err := netip.ParsePrefix(c.PodCIDR); err != nil {
			bad("podCIDR", "%q is not an address range such as 10.244.7.0/24", c.PodCIDR)
		}
	}
	for _, p := range c.Proxy.NodePortAddresses {
		if _, err := netip.ParsePrefix(p); err != nil {
			bad("proxy.nodePortAddresses", "%q is not an address range", p)
		}
	}
	for _, d := range c.ClusterDNS {
		if _, err := netip.ParseAddr(d); err != nil {
			bad("clusterDNS", "%q is not an IP address", d)
		}
	}
	port := func(key string, v int) {
		if v < 1 || v > 65535 {
			bad(key, "%d is not a port (1 to 65535)", v)
		}
	}
	port("port", c.Port)
	port("healthPort", c.HealthPort)
	port("network.vxlanPort", c.Network.VXLANPort)
	if m := c.Network.MTU; m != 0 && (m < 576 || m > 65535) {
		bad("network.mtu", "%d is not 0 or 576 to 65535", m)
	}
	if c.MaxPods < 1 {
		bad("maxPods", "%d is less than 1", c.MaxPods)
	}
	if b := c.Proxy.MasqueradeBit; b < 0 || b > 31 {
		bad("proxy.masqueradeBit", "%d is not 0 to 31", b)
	}
	if len(c.Network.CNIBinDirs) == 0 {
		bad("network.cniBinDirs", "name at least one directory")
	}
	oneOf("network.mode", c.Network.Mode, "auto", "none")
	oneOf("network.vxlan", c.Network.VXLAN, "auto", "always", "never")
	oneOf("proxy.mode", c.Proxy.Mode, "iptables", "ipvs")
	oneOf("proxy.scheduler", c.Proxy.Scheduler, "rr", "wrr", "lc", "sh")
	oneOf("cgroupDriver", c.CgroupDriver, "auto", "cgroupfs", "systemd")
	if _, err := c.Level(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.CapacityList(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.ReservedList(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.TaintList(); err != nil {
		errs = append(errs, err)
	}
	for k, v := range c.Labels {
		for _, e := range append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...) {
			bad("labels", "%s: %s", k, e)
		}
	}
	return errors.Join(errs...)
}

// Level is LogLevel.
func (c Config) Level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return l, fmt.Errorf("logLevel: %q is not one of debug, info, warn, error", c.LogLevel)
	}
	return l, nil
}

// CapacityList is Capacity.
func (c Config) CapacityList() (v1.ResourceList, error) { return quantities("capacity", c.Capacity) }

// ReservedList is SystemReserved.
func (c Config) ReservedList() (v1.ResourceList, error) {
	return quantities("systemReserved", c.SystemReserved)
}

func quantities(key string, m map[string]Value) (v1.ResourceList, error) {
	out := v1.ResourceList{}
	for name, s := range m {
		switch v1.ResourceName(name) {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		default:
			return nil, fmt.Errorf("%s: %q is not one of cpu, memory, ephemeral-storage", key, name)
		}
		q, err := resource.ParseQuantity(string(s))
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("%s: %s: %q is not a quantity such as 2 or 4Gi", key, name, s)
		}
		out[v1.ResourceName(name)] = q
	}
	return out, nil
}

// TaintList is Taints.
func (c Config) TaintList() ([]v1.Taint, error) {
	var out []v1.Taint
	for _, s := range c.Taints {
		kv, effect, ok := strings.Cut(s, ":")
		key, value, _ := strings.Cut(kv, "=")
		t := v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)}
		switch t.Effect {
		case v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute:
		default:
			ok = false
		}
		if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			return nil, fmt.Errorf("taints: %q is not KEY=VALUE:EFFECT with the effect NoSchedule, PreferNoSchedule or NoExecute", s)
		}
		out = append(out, t)
	}
	return out, nil
}

// NeedRestart names the keys that differ between two configurations and that a
// running noded does not take up by reloading.
func NeedRestart(old, new Config) []string {
	old.Proxy, old.LogLevel = new.Proxy, new.LogLevel // these are taken up
	a, b := flatten(old), flatten(new)
	var out []string
	for _, k := range keys(a, b) {
		if a[k] != b[k] {
			out = append(out, k)
		}
	}
	return out
}
