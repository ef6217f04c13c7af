package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Protocol is an IP protocol number that a Service can use.
type Protocol uint8

// The protocols of the Kubernetes API.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String is the protocol's lower case name, as iptables and kube-proxy's chain names spell it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("proto-%d", uint8(p))
}

// Family is an IP family. A dual-stack Service is two Services of the model.
type Family uint8

// The two families, numbered as NFPROTO_IPV4 and NFPROTO_IPV6.
const (
	IPv4 Family = 2
	IPv6 Family = 10
)

func (f Family) String() string {
	if f == IPv6 {
		return "ipv6"
	}
	return "ipv4"
}

// FamilyOf gives the family of an address; an IPv4-mapped IPv6 address is IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// ID names one port of one Service in one family. It is comparable.
type ID struct {
	Namespace, Name string
	Port            string // the port's name; empty for the only port of a Service
	Protocol        Protocol
	Family          Family
}

// PortName is "namespace/name:port", or "namespace/name" for an unnamed port.
func (id ID) PortName() string {
	if id.Port == "" {
		return id.Namespace + "/" + id.Name
	}
	return id.Namespace + "/" + id.Name + ":" + id.Port
}

// String is PortName with protocol and, for IPv6, the family.
func (id ID) String() string {
	s := id.PortName() + "/" + id.Protocol.String()
	if id.Family == IPv6 {
		s += "/ipv6"
	}
	return s
}

// Compare orders IDs by namespace, name, port, protocol and family.
func (id ID) Compare(o ID) int {
	switch {
	case id.Namespace != o.Namespace:
		return cmpString(id.Namespace, o.Namespace)
	case id.Name != o.Name:
		return cmpString(id.Name, o.Name)
	case id.Port != o.Port:
		return cmpString(id.Port, o.Port)
	case id.Protocol != o.Protocol:
		return int(id.Protocol) - int(o.Protocol)
	}
	return int(id.Family) - int(o.Family)
}

func cmpString(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

// Endpoint is one backend of a Service port.
type Endpoint struct {
	Addr        netip.AddrPort
	Local       bool // runs on this node
	Ready       bool // takes new connections
	Serving     bool // passes its readiness probe, whether or not it is terminating
	Terminating bool
	Elsewhere   bool // by topology hints meant for other nodes: not a choice of policy Cluster
}

// Service is one port of one Service in one family: what a backend programs. Treat a Service that was handed to a
// Dataplane or Backend, and its slices, as immutable.
type Service struct {
	ID

	ClusterIP   netip.Addr // never unset
	ServicePort uint16     // 1 to 65535
	NodePort    uint16     // 0: none

	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr   // addresses of mode VIP only
	SourceRanges    []netip.Prefix // who may use LoadBalancerIPs; empty: everyone

	AffinityTimeout time.Duration // ClientIP session affinity; 0: none, else 1 s to 24 h

	InternalLocal       bool   // internalTrafficPolicy: Local
	ExternalLocal       bool   // externalTrafficPolicy: Local
	HealthCheckNodePort uint16 // 0: none

	Endpoints []Endpoint // sorted by address, without duplicates
}

// Equal says whether two services would be programmed alike.
func (s *Service) Equal(o *Service) bool {
	return s.ID == o.ID && s.ClusterIP == o.ClusterIP && s.ServicePort == o.ServicePort && s.NodePort == o.NodePort &&
		s.AffinityTimeout == o.AffinityTimeout && s.InternalLocal == o.InternalLocal &&
		s.ExternalLocal == o.ExternalLocal && s.HealthCheckNodePort == o.HealthCheckNodePort &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) && slices.Equal(s.Endpoints, o.Endpoints)
}

// External says whether the Service is reachable by anything but its cluster address.
func (s *Service) External() bool {
	return s.NodePort != 0 || len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0
}

// Selection is the endpoints that take a Service's new connections, by how a connection arrives. The slices share
// the Service's order; they may be the same slice.
type Selection struct {
	// Cluster is every usable endpoint, near and far: the choice of policy Cluster.
	Cluster []Endpoint
	// Local is the usable endpoints of this node: the choice of policy Local.
	Local []Endpoint
	// Internal is the one of the two that the internal traffic policy names (connections to the cluster address).
	Internal []Endpoint
	// External is the one that the external traffic policy names (node ports, external and load balancer addresses).
	External []Endpoint
}

// Select picks endpoints as the Kubernetes API documents it (Service traffic policies, KEP-1669): the ready ones,
// or, where none is ready, those that are terminating but still serving. It is decided for the cluster and for this
// node apart.
func (s *Service) Select() Selection {
	var sel Selection
	sel.Cluster = usable(s.Endpoints, false)
	if s.InternalLocal || s.ExternalLocal {
		sel.Local = usable(s.Endpoints, true)
	}
	sel.Internal, sel.External = sel.Cluster, sel.Cluster
	if s.InternalLocal {
		sel.Internal = sel.Local
	}
	if s.ExternalLocal {
		sel.External = sel.Local
	}
	return sel
}

func usable(eps []Endpoint, local bool) []Endpoint {
	var ready, leaving []Endpoint
	for _, e := range eps {
		switch {
		case local && !e.Local, !local && e.Elsewhere:
		case e.Ready:
			ready = append(ready, e)
		case e.Serving && e.Terminating:
			leaving = append(leaving, e)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return leaving
}

// VirtualAddrs lists the addresses (not node ports) that the Service answers on: cluster address, external
// addresses, load balancer addresses, in that order, each with the Service port.
func (s *Service) VirtualAddrs() []netip.AddrPort {
	out := make([]netip.AddrPort, 0, 1+len(s.ExternalIPs)+len(s.LoadBalancerIPs))
	out = append(out, netip.AddrPortFrom(s.ClusterIP, s.ServicePort))
	for _, l := range [][]netip.Addr{s.ExternalIPs, s.LoadBalancerIPs} {
		for _, a := range l {
			if ap := netip.AddrPortFrom(a, s.ServicePort); !slices.Contains(out, ap) {
				out = append(out, ap)
			}
		}
	}
	return out
}
