package nodeagent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Network is what the agent must know of the pod network.
type Network interface {
	// Ready returns nil when pods that are not on the host's network can be
	// given an address, and otherwise what is missing.
	Ready() error
}

// Config is what an Agent needs. Zero values of optional fields take the
// default named with them.
type Config struct {
	NodeName string               // required: the Node object's name
	Client   kubernetes.Interface // required: acts as system:node:NodeName
	NodeIPs  []netip.Addr         // required: addresses of this host, the first is its primary one

	CRIEndpoint  string // default unix:///run/containerd/containerd.sock
	RootDir      string // default /var/lib/noded; pods are in RootDir/pods
	ImagesDir    string // default RootDir/images: archives dropped here are imported
	SystemImages string // default /usr/share/noded/images: archives that ship with the package
	PodLogsDir   string // default /var/log/pods
	LogLinksDir  string // default /var/log/containers
	CgroupDriver string // "auto" (default), "cgroupfs" or "systemd"; must agree with containerd's SystemdCgroup
	SandboxImage string // default tripod.local/pause:1

	Capacity       v1.ResourceList // overrides what is measured: cpu, memory, pods, ephemeral-storage
	SystemReserved v1.ResourceList // taken from capacity to give allocatable
	NodeLabels     map[string]string
	NodeTaints     []v1.Taint // set only when the Node is first registered

	ClusterDomain string   // default cluster.local
	ClusterDNS    []string // may be empty: ClusterFirst pods then use the host's resolvers
	ResolvConf    string   // default /etc/resolv.conf, or systemd-resolved's own file where that is a stub

	DaemonPort   int32         // default 10250: the port of the node's API, told in the Node's status
	SyncInterval time.Duration // default 1 s: how often CRI is listed
	MaxPods      int           // default 110, unless Capacity has pods

	Network    Network // optional: nil means the network needs no word from outside
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
}

func (c Config) withDefaults() (Config, error) {
	if c.NodeName == "" {
		return c, errors.New("node agent: NodeName is empty: set nodeName in the configuration")
	}
	if c.Client == nil {
		return c, errors.New("node agent: no Kubernetes client given")
	}
	if len(c.NodeIPs) == 0 {
		return c, fmt.Errorf("node agent: no address known for node %s: set nodeIP in the configuration", c.NodeName)
	}
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.CRIEndpoint, "unix:///run/containerd/containerd.sock")
	def(&c.RootDir, "/var/lib/noded")
	def(&c.ImagesDir, c.RootDir+"/images")
	def(&c.SystemImages, "/usr/share/noded/images")
	def(&c.PodLogsDir, "/var/log/pods")
	def(&c.LogLinksDir, "/var/log/containers")
	def(&c.CgroupDriver, "auto")
	def(&c.SandboxImage, "tripod.local/pause:1")
	def(&c.ClusterDomain, "cluster.local")
	if c.DaemonPort == 0 {
		c.DaemonPort = 10250
	}
	if c.SyncInterval <= 0 {
		c.SyncInterval = time.Second
	}
	if c.MaxPods <= 0 {
		c.MaxPods = 110
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch c.CgroupDriver {
	case "auto", "cgroupfs", "systemd":
	default:
		return c, fmt.Errorf("node agent: cgroup driver %q is not known: use auto, cgroupfs or systemd", c.CgroupDriver)
	}
	return c, nil
}
