package apiserver

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/tripod-cluster/tripod/pki"
	"github.com/tripod-cluster/tripod/store"
)

// Defaults of Config.
const (
	DefaultPort        = 6443
	DefaultServiceCIDR = "10.96.0.0/16"
	DefaultNodePorts   = "30000-32767"
	// DefaultVersion is the Kubernetes release whose API is served.
	DefaultVersion = "v1.37.2"
	// DefaultCompaction is how often history is compacted, as upstream.
	DefaultCompaction = 5 * time.Minute
	// DefaultReloadInterval is how often files of the Options are looked at.
	DefaultReloadInterval = 10 * time.Second
	// Issuer is the issuer of ServiceAccount tokens, and their audience when
	// none is asked for.
	Issuer = "https://kubernetes.default.svc.cluster.local"
	// GroupPeerBootstrappers is the group of join tokens for controld peers; a
	// token's Secret names it in auth-extra-groups.
	GroupPeerBootstrappers = "system:bootstrappers:tripod:peers"
	// PathJoin is where a joining peer asks for the cluster's authorities.
	// Members of GroupPeerBootstrappers may POST to it.
	PathJoin = "/tripod/v1/join"
)

// Config says what a Server serves and from where. Store, Proposer, Leaser,
// EtcdSocket, AdvertiseAddress and PKI are required.
type Config struct {
	// Store and Proposer are the local state and the order of writes.
	Store    *store.Store
	Proposer store.Proposer
	// Leaser grants and renews the leases of events and of live peers.
	Leaser store.Leaser
	// EtcdSocket is the path of the unix socket where this process serves the
	// etcd API without authentication. Only the NodePort allocator uses it.
	EtcdSocket string

	// BindAddress is the address to listen on. Empty means every address.
	BindAddress string
	// Port is the port to listen on and to advertise. Zero means DefaultPort.
	Port int
	// AdvertiseAddress is this peer's IP address as other hosts reach it; it
	// is the peer's endpoint in the `kubernetes` Service.
	AdvertiseAddress string
	// PKI holds the certificates and keys of this peer.
	PKI pki.Dir

	// ServiceCIDR is the range of ClusterIPs; its first address is the
	// `kubernetes` Service. Empty means DefaultServiceCIDR.
	ServiceCIDR string
	// NodePorts is the range of node ports, as FIRST-LAST. Empty means
	// DefaultNodePorts.
	NodePorts string

	// RuntimeDir receives the files that upstream wants to read its
	// configuration from. Required; made when missing.
	RuntimeDir string
	// AuditLog is the file of the audit log. Empty means no audit log.
	AuditLog string
	// Options are the operator's.
	Options
	// Version is the Kubernetes version that /version tells. Empty means
	// DefaultVersion.
	Version string

	// PodEvictionWait is how long the pods of a node that is not ready or not
	// reachable stay bound to it when they say nothing else by a toleration, in
	// whole seconds. Nil means upstream's five minutes. The setting is the
	// process's, not the server's.
	PodEvictionWait *time.Duration

	// Handlers are served beside the API, by path, behind its authentication
	// and authorization: a request needs the verb on the path as a
	// non-resource URL. The handler finds the user in the request's context.
	Handlers map[string]http.Handler
	// ReadyChecks make readyz fail, by name. They are called for every
	// request of readyz and must return at once.
	ReadyChecks map[string]func() error

	// Compaction is the time between compactions of the store's history.
	// Zero means DefaultCompaction; negative turns it off here, for
	// an operator who compacts by other means.
	Compaction time.Duration
}

// settings is a Config with its defaults, parsed.
type settings struct {
	Config
	bind        net.IP
	advertise   net.IP
	serviceCIDR *net.IPNet
	nodePorts   utilnet.PortRange
}

func (c Config) complete() (*settings, error) {
	s := &settings{Config: c}
	orDefault(&s.Port, DefaultPort)
	orDefault(&s.ServiceCIDR, DefaultServiceCIDR)
	orDefault(&s.NodePorts, DefaultNodePorts)
	orDefault(&s.Version, DefaultVersion)
	orDefault(&s.Compaction, DefaultCompaction)
	orDefault(&s.ReloadInterval, DefaultReloadInterval)

	var errs []error
	if s.Store == nil || s.Proposer == nil || s.Leaser == nil {
		errs = append(errs, errors.New("store, proposer and leaser are required"))
	}
	for _, r := range []struct{ name, value string }{
		{"etcd socket", s.EtcdSocket},
		{"PKI directory", string(s.PKI)},
		{"runtime directory", s.RuntimeDir},
		{"advertise address", s.AdvertiseAddress},
	} {
		if r.value == "" {
			errs = append(errs, fmt.Errorf("%s is required", r.name))
		}
	}
	s.bind = net.IPv4zero
	if s.BindAddress != "" {
		if s.bind = net.ParseIP(s.BindAddress); s.bind == nil {
			errs = append(errs, fmt.Errorf("bind address %q is not an IP address", s.BindAddress))
		}
	}
	if s.advertise = net.ParseIP(s.AdvertiseAddress); s.AdvertiseAddress != "" && s.advertise == nil {
		errs = append(errs, fmt.Errorf("advertise address %q is not an IP address", s.AdvertiseAddress))
	}
	if _, cidr, err := net.ParseCIDR(s.ServiceCIDR); err != nil {
		errs = append(errs, fmt.Errorf("service CIDR: %w", err))
	} else {
		s.serviceCIDR = cidr
	}
	if pr, err := utilnet.ParsePortRange(s.NodePorts); err != nil {
		errs = append(errs, fmt.Errorf("node port range %q: %w", s.NodePorts, err))
	} else {
		s.nodePorts = *pr
	}
	if err := s.Options.Validate(); err != nil {
		errs = append(errs, err)
	}
	for path := range s.Handlers {
		if !strings.HasPrefix(path, "/") {
			errs = append(errs, fmt.Errorf("handler path %q does not begin with /", path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("API server configuration: %w", err)
	}
	return s, nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
