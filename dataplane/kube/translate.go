package kube

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tripod-cluster/tripod/dataplane"
)

const (
	// proxyNameLabel marks Services and slices that another proxy programs.
	proxyNameLabel = "service.kubernetes.io/service-proxy-name"
	// sourceRangesAnnotation is the older form of spec.loadBalancerSourceRanges.
	sourceRangesAnnotation = "service.beta.kubernetes.io/load-balancer-source-ranges"
	defaultAffinity        = 3 * time.Hour
)

// place is where this node is.
type place struct{ node, zone string }

// proxied says whether a Service is ours to program.
func proxied(svc *corev1.Service) bool {
	_, other := svc.Labels[proxyNameLabel]
	return !other && svc.Spec.Type != corev1.ServiceTypeExternalName &&
		svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

// translate turns a Service and its slices into model services, ordered by port and family. It is pure.
func translate(svc *corev1.Service, eps []*discoveryv1.EndpointSlice, here place) []*dataplane.Service {
	if !proxied(svc) {
		return nil
	}
	var out []*dataplane.Service
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	for i := range svc.Spec.Ports {
		for _, ip := range ips {
			a, err := netip.ParseAddr(ip)
			if err != nil {
				continue
			}
			out = append(out, port(svc, &svc.Spec.Ports[i], a.Unmap(), eps, here))
		}
	}
	return out
}

func port(svc *corev1.Service, p *corev1.ServicePort, ip netip.Addr, eps []*discoveryv1.EndpointSlice, here place) *dataplane.Service {
	spec := &svc.Spec
	family := dataplane.FamilyOf(ip)
	s := &dataplane.Service{
		ID:          dataplane.ID{Namespace: svc.Namespace, Name: svc.Name, Port: p.Name, Protocol: protocol(p.Protocol), Family: family},
		ClusterIP:   ip,
		ServicePort: uint16(p.Port),
		ExternalIPs: addrs(spec.ExternalIPs, family),
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	balanced := spec.Type == corev1.ServiceTypeLoadBalancer
	if balanced || spec.Type == corev1.ServiceTypeNodePort {
		s.NodePort = uint16(p.NodePort)
	}
	if balanced {
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
				s.LoadBalancerIPs = append(s.LoadBalancerIPs, addrs([]string{in.IP}, family)...)
			}
		}
		s.SourceRanges = sourceRanges(svc, family)
	}
	s.ExternalLocal = s.External() && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if balanced && s.ExternalLocal {
		s.HealthCheckNodePort = uint16(spec.HealthCheckNodePort)
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.AffinityTimeout = defaultAffinity
		if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			s.AffinityTimeout = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	s.Endpoints = endpoints(p, family, eps, here)
	return s
}

func protocol(p corev1.Protocol) dataplane.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return dataplane.UDP
	case corev1.ProtocolSCTP:
		return dataplane.SCTP
	}
	return dataplane.TCP
}

func addrs(list []string, f dataplane.Family) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		if a, err := netip.ParseAddr(s); err == nil && dataplane.FamilyOf(a) == f {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func sourceRanges(svc *corev1.Service, f dataplane.Family) []netip.Prefix {
	list := svc.Spec.LoadBalancerSourceRanges
	if len(list) == 0 {
		list = strings.Split(svc.Annotations[sourceRangesAnnotation], ",")
	}
	var out []netip.Prefix
	stated := false
	for _, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			continue
		}
		stated = true
		if dataplane.FamilyOf(p.Addr()) == f {
			out = append(out, p.Masked())
		}
	}
	if stated && len(out) == 0 { // ranges of the other family only: nobody of this one may come in
		zero := netip.IPv4Unspecified()
		if f == dataplane.IPv6 {
			zero = netip.IPv6Unspecified()
		}
		out = append(out, netip.PrefixFrom(zero, zero.BitLen()))
	}
	return out
}

// endpoint is an endpoint with what decides about topology.
type endpoint struct {
	dataplane.Endpoint
	hints *discoveryv1.EndpointHints
}

func endpoints(p *corev1.ServicePort, f dataplane.Family, eps []*discoveryv1.EndpointSlice, here place) []dataplane.Endpoint {
	byAddr := map[netip.AddrPort]endpoint{}
	for _, slice := range eps {
		if slice.DeletionTimestamp != nil {
			continue
		}
		for i := range slice.Ports {
			sp := &slice.Ports[i]
			if sp.Port == nil || deref(sp.Name, "") != p.Name || protocol(deref(sp.Protocol, corev1.ProtocolTCP)) != protocol(p.Protocol) {
				continue
			}
			for j := range slice.Endpoints {
				e, ok := one(&slice.Endpoints[j], uint16(*sp.Port), f, here)
				if !ok {
					continue
				}
				if have, dup := byAddr[e.Addr]; !dup || better(e, have) {
					byAddr[e.Addr] = e
				}
			}
		}
	}
	list := make([]endpoint, 0, len(byAddr))
	for _, e := range byAddr {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b endpoint) int { return a.Addr.Compare(b.Addr) })
	topology(list, here)
	out := make([]dataplane.Endpoint, len(list))
	for i := range list {
		out[i] = list[i].Endpoint
	}
	return out
}

func deref[T any](p *T, or T) T {
	if p == nil {
		return or
	}
	return *p
}

// better picks among two slices' word on one address, while an endpoint moves between slices.
func better(a, b endpoint) bool {
	rank := func(e endpoint) int {
		switch {
		case e.Ready:
			return 2
		case e.Serving:
			return 1
		}
		return 0
	}
	return rank(a) > rank(b)
}

func one(e *discoveryv1.Endpoint, port uint16, f dataplane.Family, here place) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	a, err := netip.ParseAddr(e.Addresses[0]) // the others are not used, as the API says
	if err != nil || dataplane.FamilyOf(a) != f {
		return endpoint{}, false
	}
	ready := deref(e.Conditions.Ready, true)
	return endpoint{
		Endpoint: dataplane.Endpoint{
			Addr: netip.AddrPortFrom(a.Unmap(), port), Ready: ready,
			Serving: deref(e.Conditions.Serving, ready), Terminating: deref(e.Conditions.Terminating, false),
			Local: here.node != "" && deref(e.NodeName, "") == here.node,
		},
		hints: e.Hints,
	}, true
}

// topology marks the endpoints that their hints give to other places. Hints count only where every ready endpoint
// has them and at least one is meant for here: node hints first, then zone hints.
func topology(list []endpoint, here place) {
	forNode := func(e endpoint) (hinted, match bool) {
		if e.hints == nil {
			return false, false
		}
		return len(e.hints.ForNodes) > 0, slices.ContainsFunc(e.hints.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == here.node })
	}
	forZone := func(e endpoint) (hinted, match bool) {
		if e.hints == nil {
			return false, false
		}
		return len(e.hints.ForZones) > 0, slices.ContainsFunc(e.hints.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == here.zone })
	}
	if here.node != "" && apply(list, forNode) {
		return
	}
	if here.zone != "" {
		apply(list, forZone)
	}
}

func apply(list []endpoint, hint func(endpoint) (hinted, here bool)) bool {
	any := false
	for _, e := range list {
		if !e.Ready {
			continue
		}
		hinted, here := hint(e)
		if !hinted {
			return false
		}
		any = any || here
	}
	if !any {
		return false
	}
	for i := range list {
		if hinted, here := hint(list[i]); hinted && !here {
			list[i].Elsewhere = true
		}
	}
	return true
}
