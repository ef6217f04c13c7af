package peer

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// load reads a configuration file of the given text.
func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	p := filepath.Join(t.TempDir(), "controld.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadConfig(p)
}

// ofHost is Default with what depends on the host.
func ofHost(t *testing.T) Config {
	t.Helper()
	h, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Name = h
	return c
}

// A key in the packaged file follows the # at once, a comment after a space.
var commentedKey = regexp.MustCompile(`(?m)^#([a-zA-Z0-9]+):`)

// TestPackagedFileHasEveryDefault: the file of the package changes nothing as it
// is, nor with every key uncommented, and it has every key.
func TestPackagedFileHasEveryDefault(t *testing.T) {
	b, err := os.ReadFile("../../packaging/deb/controld.yaml")
	if err != nil {
		t.Fatal(err)
	}
	packaged := string(b)
	for name, text := range map[string]string{"as installed": packaged, "uncommented": commentedKey.ReplaceAllString(packaged, "$1:"), "empty": ""} {
		c, err := load(t, text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		dropEmpty(&c)
		if want := ofHost(t); !reflect.DeepEqual(c, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, c, want)
		}
	}
	var keys []string
	for _, m := range commentedKey.FindAllStringSubmatch(packaged, -1) {
		keys = append(keys, m[1])
	}
	var fields []string
	for i := range reflect.TypeFor[Config]().NumField() {
		key, _, _ := strings.Cut(reflect.TypeFor[Config]().Field(i).Tag.Get("json"), ",")
		fields = append(fields, key)
	}
	if !reflect.DeepEqual(keys, fields) {
		t.Errorf("keys in the file: %v\nkeys there are:   %v", keys, fields)
	}
}

// dropEmpty makes empty lists and maps none, which says as much.
func dropEmpty(c *Config) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if k := f.Kind(); (k == reflect.Map || k == reflect.Slice) && f.Len() == 0 {
			f.SetZero()
		}
	}
}

func TestMissingFileIsTheDefaults(t *testing.T) {
	c, err := LoadConfig(filepath.Join(t.TempDir(), "none.yaml"))
	if err != nil || !reflect.DeepEqual(c, ofHost(t)) {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := LoadConfig(t.TempDir()); err == nil || !strings.Contains(err.Error(), "read configuration") {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

func TestFileIsReadOverTheDefaults(t *testing.T) {
	c, err := load(t, "name: p1\nadvertiseAddress: 192.0.2.7\napiPort: 7443\nauditLog: none\nnodeMonitorGracePeriod: 5s\npodEvictionWait: 0s\nworkers: {deployment: 7}\nlogLevel: debug\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Name, want.AdvertiseAddress, want.APIPort, want.AuditLog, want.LogLevel = "p1", "192.0.2.7", 7443, "none", "debug"
	want.NodeMonitorGracePeriod, want.PodEvictionWait, want.Workers = Duration(5*time.Second), 0, map[string]int{"deployment": 7}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestMistakesAreNamed: an error names the file, the key and what is wrong with it.
func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"controllerQPS: -1":                  "controllerQPS: -1 is out of range",
		"controllerBurst: 5":                 "controllerBurst: 5 means nothing without controllerQPS",
		"apiPrt: 6443":                       `unknown field "apiPrt"`,
		"apiPort: 1\napiPort: 2":             `"apiPort" already`,
		"apiPort: many":                      "apiPort",
		"name: Host_1":                       `name: "Host_1" is not a DNS name`,
		"advertiseAddress: here":             `advertiseAddress: "here" is not an IP address`,
		"listenAddress: all":                 `listenAddress: "all" is not an IP address`,
		"apiPort: 0":                         "apiPort: 0 is not a port",
		"etcdPort: 65536":                    "etcdPort: 65536 is not a port",
		"peerPort: -1":                       "peerPort: -1 is not a port",
		"peerPort: 6443":                     "peerPort: port 6443 is apiPort already",
		"nodeMonitorGracePeriod: 40":         "40 is not a duration (write 40s or 5m)",
		"nodeMonitorGracePeriod: 1s":         "nodeMonitorGracePeriod: 1s is out of range (2s to 1h)",
		"nodeMonitorGracePeriod: 2h":         "nodeMonitorGracePeriod: 2h0m0s is out of range",
		"podEvictionWait: -1s":               "podEvictionWait: -1s is out of range (0s to 24h)",
		"podEvictionWait: 25h":               "podEvictionWait: 25h0m0s is out of range",
		"encryptionConfig: keys.yaml":        `encryptionConfig: "keys.yaml" is not an absolute path`,
		"auditWebhook: ./hook":               `auditWebhook: "./hook" is not an absolute path`,
		"featureGates: {X: maybe}":           "featureGates",
		"runtimeConfig: [api/all]":           "runtimeConfig",
		"maxRequestsInFlight: 0":             "maxRequestsInFlight: 0 is out of range (1 to 100000)",
		"maxMutatingRequestsInFlight: -1":    "maxMutatingRequestsInFlight: -1 is out of range",
		"logLevel: loud":                     `logLevel: "loud" is none of debug, info, warn, error`,
		"snapshotInterval: 30s":              "snapshotInterval: 30s is out of range (1m to 744h",
		"snapshotKeep: 0":                    "snapshotKeep: 0 is out of range (1 to 10000)",
		"snapshotDirectory: snapshots":       `snapshotDirectory: "snapshots" is not an absolute path`,
		"snapshotS3: {bucket: b}":            `snapshotS3.endpoint: "" is not of the form`,
		"snapshotSSH: {address: h}":          "snapshotSSH.user: none is given",
		"workers: {deployment: 0}":           "workers.deployment: 0 is out of range (1 to 1000)",
		"workers: {deployment: 1001}":        "workers.deployment: 1001 is out of range",
		"workers: [deployment]":              "workers",
		"this is not: a: configuration file": "yaml",
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "controld.yaml") {
			t.Errorf("%q: got %v, want %q and the file's name", text, err, want)
		}
	}
}

// TestClusterNetworksAreChecked: what `controld init` is told must not contradict itself.
func TestClusterNetworksAreChecked(t *testing.T) {
	host := netip.MustParseAddr("192.0.2.7")
	with := func(change func(*Cluster)) Cluster {
		c := DefaultCluster()
		change(&c)
		return c
	}
	for name, x := range map[string]struct {
		c    Cluster
		peer netip.Addr
		want string
	}{
		"defaults":             {DefaultCluster(), host, ""},
		"virtual address":      {with(func(c *Cluster) { c.VIP = "192.0.2.8" }), host, ""},
		"no service network":   {with(func(c *Cluster) { c.ServiceCIDR = "10.96.0.0" }), host, "service CIDR"},
		"no pod network":       {with(func(c *Cluster) { c.ClusterCIDR = "pods" }), host, "cluster CIDR"},
		"overlap":              {with(func(c *Cluster) { c.ClusterCIDR = "10.96.128.0/17" }), host, "overlap"},
		"small pod network":    {with(func(c *Cluster) { c.ClusterCIDR = "10.244.0.0/25" }), host, "too small"},
		"node ports":           {with(func(c *Cluster) { c.NodePortRange = "many" }), host, "node ports"},
		"node ports reversed":  {with(func(c *Cluster) { c.NodePortRange = "32767-30000" }), host, "node ports"},
		"vip is no address":    {with(func(c *Cluster) { c.VIP = "vip" }), host, "vip"},
		"vip is the host's":    {with(func(c *Cluster) { c.VIP = "192.0.2.7" }), host, "must be a free address"},
		"vip among the pods":   {with(func(c *Cluster) { c.VIP = "10.244.0.9" }), host, "the vip, 10.244.0.9, lies inside"},
		"host among Services'": {DefaultCluster(), netip.MustParseAddr("10.96.3.4"), "--service-cidr"},
	} {
		err := x.c.Validate(x.peer)
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: got %v, want %q", name, err, x.want)
		}
	}
	if ip, err := with(func(c *Cluster) { c.ServiceCIDR = "10.96.7.0/24" }).FirstServiceIP(); err != nil || ip.String() != "10.96.7.1" {
		t.Errorf("first Service address: %v, %v", ip, err)
	}
}
