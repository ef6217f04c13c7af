package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tripod-cluster/tripod/backup"
)

// Paths of an installed peer.
const (
	DefaultConfigPath = "/etc/controld/controld.yaml"
	DefaultStateDir   = "/var/lib/controld"
	AdminKubeconfig   = "/etc/controld/admin.kubeconfig"
	AdminSocket       = "/run/controld/admin.sock"
)

// Config is what the operator may set, in /etc/controld/controld.yaml. Zero
// values mean the default; Default returns them.
type Config struct {
	// Name of this peer, unique among the peers. Default: the host name.
	Name string `json:"name,omitempty"`
	// AdvertiseAddress is the address at which the other peers, nodes and clients
	// reach this host. Default: chosen by `controld init` or `join`, see there.
	AdvertiseAddress string `json:"advertiseAddress,omitempty"`
	// ListenAddress is the address that the ports below are bound to.
	ListenAddress string `json:"listenAddress,omitempty"`
	APIPort       int    `json:"apiPort,omitempty"`
	EtcdPort      int    `json:"etcdPort,omitempty"`
	PeerPort      int    `json:"peerPort,omitempty"`
	// StateDir holds everything that must survive: raft, certificates, identity.
	StateDir string `json:"stateDir,omitempty"`
	// AuditLog is the file of the audit log; "none" switches it off.
	AuditLog string `json:"auditLog,omitempty"`
	// AuditPolicy is a file with an audit.k8s.io/v1 Policy, in place of the built-in
	// one, and AuditWebhook a kubeconfig of a server that gets the events too.
	AuditPolicy  string `json:"auditPolicy,omitempty"`
	AuditWebhook string `json:"auditWebhook,omitempty"`
	// FeatureGates switches Kubernetes' features, by name, for the whole process.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// RuntimeConfig switches versions of the API: GROUP/VERSION or api/all, api/ga,
	// api/beta, api/alpha.
	RuntimeConfig map[string]bool `json:"runtimeConfig,omitempty"`
	// EncryptionConfig is a file with an EncryptionConfiguration, which nobody but
	// its owner, the user controld, has access to.
	EncryptionConfig string `json:"encryptionConfig,omitempty"`
	// AuthenticationConfig is a file with an AuthenticationConfiguration,
	// AuthenticationWebhook a kubeconfig of a server that answers TokenReviews.
	AuthenticationConfig  string `json:"authenticationConfig,omitempty"`
	AuthenticationWebhook string `json:"authenticationWebhook,omitempty"`
	// AuthorizationConfig is a file with an AuthorizationConfiguration, in place of
	// the authorizers Node and RBAC, which it has to name.
	AuthorizationConfig string `json:"authorizationConfig,omitempty"`
	// EnableAdmissionPlugins and DisableAdmissionPlugins are names beside those that
	// are on by default; AdmissionConfig is a file with an AdmissionConfiguration.
	EnableAdmissionPlugins  []string `json:"enableAdmissionPlugins,omitempty"`
	DisableAdmissionPlugins []string `json:"disableAdmissionPlugins,omitempty"`
	AdmissionConfig         string   `json:"admissionConfig,omitempty"`
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight add up to how many requests
	// this peer serves at once; priority and fairness divides them.
	MaxRequestsInFlight         int `json:"maxRequestsInFlight,omitempty"`
	MaxMutatingRequestsInFlight int `json:"maxMutatingRequestsInFlight,omitempty"`
	// NodeMonitorGracePeriod is how long a node may be silent before it counts as
	// unreachable.
	NodeMonitorGracePeriod Duration `json:"nodeMonitorGracePeriod,omitempty"`
	// PodEvictionWait is how long the pods of an unreachable or not ready node stay
	// bound to it when they say nothing else by a toleration.
	PodEvictionWait Duration `json:"podEvictionWait,omitempty"`
	// Workers sets how many workers a controller has, by its name.
	Workers map[string]int `json:"workers,omitempty"`
	// ControllerQPS is how many requests a second each controller makes at most, and
	// ControllerBurst how many at once; 0 for no limit but the API server's own.
	ControllerQPS   float32 `json:"controllerQPS,omitempty"`
	ControllerBurst int     `json:"controllerBurst,omitempty"`
	// SchedulerConfig is the path of a KubeSchedulerConfiguration; empty: the
	// defaults.
	SchedulerConfig string `json:"schedulerConfig,omitempty"`
	// SnapshotInterval is how often a snapshot of the store is taken; 0 for never.
	// SnapshotKeep of them are kept in SnapshotDirectory, and as many at each place
	// on another machine.
	SnapshotInterval  Duration         `json:"snapshotInterval,omitempty"`
	SnapshotKeep      int              `json:"snapshotKeep,omitempty"`
	SnapshotDirectory string           `json:"snapshotDirectory,omitempty"`
	SnapshotS3        backup.S3Config  `json:"snapshotS3,omitzero"`
	SnapshotSSH       backup.SSHConfig `json:"snapshotSSH,omitzero"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty"`
}

// Duration is a time.Duration written as Go writes it: 40s, 5m.
type Duration time.Duration

// UnmarshalJSON reads a quoted duration.
func (d *Duration) UnmarshalJSON(b []byte) error {
	v, err := time.ParseDuration(string(bytes.Trim(b, `"`)))
	if err != nil {
		return fmt.Errorf("%s is not a duration (write 40s or 5m)", b)
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes a quoted duration.
func (d Duration) MarshalJSON() ([]byte, error) {
	return []byte(`"` + time.Duration(d).String() + `"`), nil
}

// Default is the configuration of an empty file.
func Default() Config {
	return Config{
		ListenAddress: "0.0.0.0", APIPort: 6443, EtcdPort: 2379, PeerPort: 2380,
		StateDir: DefaultStateDir, AuditLog: DefaultStateDir + "/audit/audit.log",
		MaxRequestsInFlight: 400, MaxMutatingRequestsInFlight: 200,
		NodeMonitorGracePeriod: Duration(40 * time.Second), PodEvictionWait: Duration(5 * time.Minute),
		SnapshotInterval: Duration(time.Hour), SnapshotKeep: 24, SnapshotDirectory: DefaultStateDir + "/snapshots",
		LogLevel: "info",
	}
}

// LoadConfig reads a configuration file over the defaults. A missing file is an
// empty one. Unknown keys and values out of range are errors that name the key.
func LoadConfig(path string) (Config, error) {
	c := Default()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

func (c *Config) validate() error {
	if c.Name == "" {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name: no host name: %w", err)
		}
		c.Name = h
	}
	if !validName.MatchString(c.Name) {
		return fmt.Errorf("name: %q is not a DNS name in lower case", c.Name)
	}
	if c.AdvertiseAddress != "" && net.ParseIP(c.AdvertiseAddress) == nil {
		return fmt.Errorf("advertiseAddress: %q is not an IP address", c.AdvertiseAddress)
	}
	if net.ParseIP(c.ListenAddress) == nil {
		return fmt.Errorf("listenAddress: %q is not an IP address", c.ListenAddress)
	}
	if c.SchedulerConfig != "" && !filepath.IsAbs(c.SchedulerConfig) {
		return fmt.Errorf("schedulerConfig: %q is not an absolute path", c.SchedulerConfig)
	}
	seen := map[int]string{}
	for _, p := range []struct {
		key  string
		port int
	}{{"apiPort", c.APIPort}, {"etcdPort", c.EtcdPort}, {"peerPort", c.PeerPort}} {
		if p.port < 1 || p.port > 65535 {
			return fmt.Errorf("%s: %d is not a port", p.key, p.port)
		}
		if o, ok := seen[p.port]; ok {
			return fmt.Errorf("%s: port %d is %s already", p.key, p.port, o)
		}
		seen[p.port] = p.key
	}
	if d := time.Duration(c.NodeMonitorGracePeriod); d < 2*time.Second || d > time.Hour {
		return fmt.Errorf("nodeMonitorGracePeriod: %v is out of range (2s to 1h)", d)
	}
	if d := time.Duration(c.PodEvictionWait); d < 0 || d > 24*time.Hour {
		return fmt.Errorf("podEvictionWait: %v is out of range (0s to 24h)", d)
	}
	if err := c.validateAPI(); err != nil {
		return err
	}
	if err := c.validateSnapshots(); err != nil {
		return err
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		return fmt.Errorf("logLevel: %q is none of debug, info, warn, error", c.LogLevel)
	}
	for n, w := range c.Workers {
		if w < 1 || w > 1000 {
			return fmt.Errorf("workers.%s: %d is out of range (1 to 1000)", n, w)
		}
	}
	if c.ControllerQPS < 0 || c.ControllerQPS > 100000 {
		return fmt.Errorf("controllerQPS: %v is out of range (0 to 100000; 0 for no limit)", c.ControllerQPS)
	}
	if c.ControllerBurst < 0 || c.ControllerBurst > 100000 {
		return fmt.Errorf("controllerBurst: %d is out of range (0 to 100000)", c.ControllerBurst)
	}
	if c.ControllerBurst > 0 && c.ControllerQPS == 0 {
		return fmt.Errorf("controllerBurst: %d means nothing without controllerQPS", c.ControllerBurst)
	}
	return nil
}

func (c *Config) validateSnapshots() error {
	if d := time.Duration(c.SnapshotInterval); d != 0 && (d < time.Minute || d > 31*24*time.Hour) {
		return fmt.Errorf("snapshotInterval: %v is out of range (1m to 744h, or 0s for none)", d)
	}
	if c.SnapshotKeep < 1 || c.SnapshotKeep > 10000 {
		return fmt.Errorf("snapshotKeep: %d is out of range (1 to 10000)", c.SnapshotKeep)
	}
	if !filepath.IsAbs(c.SnapshotDirectory) {
		return fmt.Errorf("snapshotDirectory: %q is not an absolute path", c.SnapshotDirectory)
	}
	if err := c.SnapshotS3.Validate(); err != nil {
		return fmt.Errorf("snapshotS3.%w", err)
	}
	if err := c.SnapshotSSH.Validate(); err != nil {
		return fmt.Errorf("snapshotSSH.%w", err)
	}
	return nil
}

// SnapshotDestinations are the places on other machines.
func (c *Config) SnapshotDestinations() []backup.Destination {
	var out []backup.Destination
	if c.SnapshotS3.Set() {
		out = append(out, backup.NewS3(c.SnapshotS3))
	}
	if c.SnapshotSSH.Set() {
		out = append(out, backup.NewSSH(c.SnapshotSSH))
	}
	return out
}

// Cluster is what all peers agree on. It is set by `controld init` and handed to
// each peer that joins.
type Cluster struct {
	ServiceCIDR   string `json:"serviceCIDR"`
	ClusterCIDR   string `json:"clusterCIDR"`
	NodePortRange string `json:"nodePortRange"`
	VIP           string `json:"vip,omitempty"`
}

// DefaultCluster is what `controld init` sets where no flag says otherwise.
func DefaultCluster() Cluster {
	return Cluster{ServiceCIDR: "10.96.0.0/16", ClusterCIDR: "10.244.0.0/16", NodePortRange: "30000-32767"}
}

// Validate checks the networks of a new cluster against each other and against
// the address of its first peer.
func (c Cluster) Validate(peer netip.Addr) error {
	svc, err := netip.ParsePrefix(c.ServiceCIDR)
	if err != nil {
		return fmt.Errorf("service CIDR: %w", err)
	}
	pods, err := netip.ParsePrefix(c.ClusterCIDR)
	if err != nil {
		return fmt.Errorf("cluster CIDR: %w", err)
	}
	if pods.Bits() > nodeMask(pods) {
		return fmt.Errorf("the cluster CIDR %s is too small: each node takes a /%d of it", pods, nodeMask(pods))
	}
	var low, high int
	if n, err := fmt.Sscanf(c.NodePortRange, "%d-%d", &low, &high); n != 2 || err != nil || low < 1 || high > 65535 || low > high {
		return fmt.Errorf("node ports: %q is not a range of ports such as 30000-32767", c.NodePortRange)
	}
	if svc.Overlaps(pods) {
		return fmt.Errorf("the service CIDR %s and the cluster CIDR %s overlap", svc, pods)
	}
	addrs := map[string]netip.Addr{"address of this peer": peer}
	if c.VIP != "" {
		v, err := netip.ParseAddr(c.VIP)
		if err != nil {
			return fmt.Errorf("vip: %w", err)
		}
		if v == peer {
			return fmt.Errorf("vip: %s is this host's own address; it must be a free address of the same network", v)
		}
		addrs["vip"] = v
	}
	for what, a := range addrs {
		if svc.Contains(a) || pods.Contains(a) {
			return fmt.Errorf("the %s, %s, lies inside the service or cluster CIDR; choose others with --service-cidr and --cluster-cidr", what, a)
		}
	}
	return nil
}

// nodeMask is the length of the block that a node takes of the cluster CIDR.
func nodeMask(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 24
	}
	return 64
}

// FirstServiceIP is the address of the `kubernetes` Service.
func (c Cluster) FirstServiceIP() (net.IP, error) {
	p, err := netip.ParsePrefix(c.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("service CIDR: %w", err)
	}
	return net.IP(p.Masked().Addr().Next().AsSlice()), nil
}
