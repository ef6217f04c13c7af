package kube

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/dataplane"
)

var here = place{node: "n1", zone: "z1"}

func ptr[T any](v T) *T { return &v }

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func slice(family discoveryv1.AddressType, eps ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: family, Endpoints: eps,
		Ports: []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)},
			{Name: ptr("other"), Port: ptr(int32(9090)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
}

func ep(addr, node string, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}}
	for _, c := range change {
		c(&e)
	}
	return e
}

func TestTranslateBasics(t *testing.T) {
	got := translate(service(nil), []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, ep("10.244.2.6", "n2"), ep("10.244.1.5", "n1"))}, here)
	want := []*dataplane.Service{{
		ID:        dataplane.ID{Namespace: "default", Name: "web", Port: "http", Protocol: dataplane.TCP, Family: dataplane.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.10"), ServicePort: 80,
		Endpoints: []dataplane.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.5:8080"), Ready: true, Serving: true, Local: true},
			{Addr: netip.MustParseAddrPort("10.244.2.6:8080"), Ready: true, Serving: true},
		}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got[0], want[0])
	}
}

func TestServicesThatAreNotProgrammed(t *testing.T) {
	for what, change := range map[string]func(*corev1.Service){
		"headless":      func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone },
		"no address":    func(s *corev1.Service) { s.Spec.ClusterIP = "" },
		"ExternalName":  func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName },
		"another proxy": func(s *corev1.Service) { s.Labels = map[string]string{proxyNameLabel: "other"} },
	} {
		if got := translate(service(change), nil, here); len(got) > 0 {
			t.Errorf("%s: programmed as %+v", what, got[0])
		}
	}
}

func TestDualStackServicesArePortsOfBothFamilies(t *testing.T) {
	svc := service(func(s *corev1.Service) {
		s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::10"}
		s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1"}
	})
	got := translate(svc, []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, ep("10.244.1.5", "n1")), slice(discoveryv1.AddressTypeIPv6, ep("fd00:1::5", "n1"))}, here)
	if len(got) != 2 {
		t.Fatalf("%d services, want 2", len(got))
	}
	for i, want := range []struct{ ip, ep, ext string }{{"10.96.0.10", "10.244.1.5:8080", "192.0.2.1"}, {"fd00::10", "[fd00:1::5]:8080", "2001:db8::1"}} {
		s := got[i]
		if s.ClusterIP.String() != want.ip || len(s.Endpoints) != 1 || s.Endpoints[0].Addr.String() != want.ep ||
			len(s.ExternalIPs) != 1 || s.ExternalIPs[0].String() != want.ext || s.Family != dataplane.FamilyOf(s.ClusterIP) {
			t.Errorf("service %d is %+v, want %+v", i, s, want)
		}
	}
}

func TestExternalSettings(t *testing.T) {
	lb := service(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = 32000
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.7/24", "2001:db8::/32"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "192.0.2.7"}, {IP: "192.0.2.8", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example"}}
	})
	s := translate(lb, nil, here)[0]
	if s.NodePort != 30080 || !s.ExternalLocal || !s.InternalLocal || s.HealthCheckNodePort != 32000 || s.AffinityTimeout != 3*time.Hour {
		t.Errorf("policies: %+v", s)
	}
	if len(s.LoadBalancerIPs) != 1 || s.LoadBalancerIPs[0].String() != "192.0.2.7" {
		t.Errorf("load balancer addresses %v, want those of mode VIP", s.LoadBalancerIPs)
	}
	if len(s.SourceRanges) != 1 || s.SourceRanges[0].String() != "198.51.100.0/24" {
		t.Errorf("source ranges %v", s.SourceRanges)
	}
	lb.Spec.LoadBalancerSourceRanges = []string{"2001:db8::/32"}
	if s := translate(lb, nil, here)[0]; len(s.SourceRanges) != 1 || s.SourceRanges[0].String() != "0.0.0.0/32" {
		t.Errorf("ranges of IPv6 alone leave IPv4 open to %v", s.SourceRanges)
	}
	plain := service(nil) // node port fields of a ClusterIP service are remains
	if s := translate(plain, nil, here)[0]; s.NodePort != 0 || s.ExternalLocal || s.HealthCheckNodePort != 0 {
		t.Errorf("a ClusterIP service got %+v", s)
	}
}

func TestEndpointConditions(t *testing.T) {
	cond := func(ready, serving, terminating *bool) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) {
			e.Conditions = discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
		}
	}
	got := translate(service(nil), []*discoveryv1.EndpointSlice{
		slice(discoveryv1.AddressTypeIPv4,
			ep("10.0.0.1", "n1", cond(nil, nil, nil)),
			ep("10.0.0.2", "n1", cond(ptr(false), nil, nil)),
			ep("10.0.0.3", "n1", cond(ptr(false), ptr(true), ptr(true))),
			ep("10.0.0.4", "n1", cond(ptr(false), nil, nil))),
		slice(discoveryv1.AddressTypeIPv4, ep("10.0.0.4", "n1")), // moved between slices: the better word counts
	}, here)[0].Endpoints
	want := []dataplane.Endpoint{
		{Ready: true, Serving: true}, {}, {Serving: true, Terminating: true}, {Ready: true, Serving: true},
	}
	if len(got) != len(want) {
		t.Fatalf("%d endpoints, want %d", len(got), len(want))
	}
	for i, w := range want {
		w.Addr, w.Local = got[i].Addr, true
		if got[i] != w {
			t.Errorf("endpoint %d is %+v, want %+v", i, got[i], w)
		}
	}
}

func TestTopologyHints(t *testing.T) {
	zone := func(z string) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: z}}}
		}
	}
	node := func(n string) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) {
			if e.Hints == nil {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: n}}
		}
	}
	for _, c := range []struct {
		what string
		eps  []discoveryv1.Endpoint
		want []bool // elsewhere
	}{
		{"zones", []discoveryv1.Endpoint{ep("10.0.0.1", "n1", zone("z1")), ep("10.0.0.2", "n2", zone("z2"))}, []bool{false, true}},
		{"one without a hint: none counts", []discoveryv1.Endpoint{ep("10.0.0.1", "n1", zone("z1")), ep("10.0.0.2", "n2")}, []bool{false, false}},
		{"nothing for this zone: none counts", []discoveryv1.Endpoint{ep("10.0.0.1", "n1", zone("z3")), ep("10.0.0.2", "n2", zone("z2"))}, []bool{false, false}},
		{"nodes before zones", []discoveryv1.Endpoint{ep("10.0.0.1", "n1", zone("z1"), node("n1")), ep("10.0.0.2", "n2", zone("z1"), node("n2"))}, []bool{false, true}},
		{"nothing for this node: zones", []discoveryv1.Endpoint{ep("10.0.0.1", "n1", zone("z2"), node("n2")), ep("10.0.0.2", "n2", zone("z1"), node("n3"))}, []bool{true, false}},
	} {
		got := translate(service(nil), []*discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, c.eps...)}, here)[0].Endpoints
		for i := range c.want {
			if got[i].Elsewhere != c.want[i] {
				t.Errorf("%s: endpoint %d elsewhere %v, want %v", c.what, i, got[i].Elsewhere, c.want[i])
			}
		}
	}
}
