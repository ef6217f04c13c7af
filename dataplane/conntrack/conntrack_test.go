package conntrack

import (
	"net"
	"net/netip"
	"testing"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/vishvananda/netlink"
)

func flow(proto uint8, dst string, dport uint16, from string, fport uint16) *netlink.ConntrackFlow {
	f := &netlink.ConntrackFlow{}
	f.Forward.Protocol = proto
	f.Forward.DstIP, f.Forward.DstPort = net.ParseIP(dst), dport
	f.Reverse.SrcIP, f.Reverse.SrcPort = net.ParseIP(from), fport
	return f
}

func TestStaleFlowsAreTheOnesWhoseBackendLeft(t *testing.T) {
	dns := &dataplane.Service{
		ID:        dataplane.ID{Namespace: "kube-system", Name: "dns", Protocol: dataplane.UDP, Family: dataplane.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.2"), ServicePort: 53, NodePort: 30053,
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Endpoints: []dataplane.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.2:5353"), Ready: true, Serving: true},
			{Addr: netip.MustParseAddrPort("10.244.1.3:5353"), Serving: true, Terminating: true},
			{Addr: netip.MustParseAddrPort("10.244.1.4:5353"), Terminating: true},
		},
	}
	x := newFilter(dataplane.IPv4, []*dataplane.Service{dns})
	x.local[netip.MustParseAddr("172.31.77.11")] = true
	for _, c := range []struct {
		what  string
		flow  *netlink.ConntrackFlow
		stale bool
	}{
		{"to a ready backend", flow(17, "10.96.0.2", 53, "10.244.1.2", 5353), false},
		{"to a terminating one that still serves", flow(17, "10.96.0.2", 53, "10.244.1.3", 5353), false},
		{"to one that stopped serving", flow(17, "10.96.0.2", 53, "10.244.1.4", 5353), true},
		{"to one that is gone", flow(17, "10.96.0.2", 53, "10.244.9.9", 5353), true},
		{"never translated", flow(17, "10.96.0.2", 53, "10.96.0.2", 53), true},
		{"by external address", flow(17, "192.0.2.1", 53, "10.244.9.9", 5353), true},
		{"by node port", flow(17, "172.31.77.11", 30053, "10.244.9.9", 5353), true},
		{"the same port of another machine", flow(17, "172.31.77.99", 30053, "172.31.77.99", 30053), false},
		{"TCP", flow(6, "10.96.0.2", 53, "10.244.9.9", 5353), false},
		{"another port", flow(17, "10.96.0.2", 54, "10.244.9.9", 5353), false},
		{"another address", flow(17, "10.96.0.3", 53, "10.244.9.9", 5353), false},
	} {
		if got := x.MatchConntrackFlow(c.flow); got != c.stale {
			t.Errorf("%s: stale = %v, want %v", c.what, got, c.stale)
		}
	}
	if newFilter(dataplane.IPv6, []*dataplane.Service{dns}) != nil {
		t.Error("an IPv4 service made a filter for IPv6")
	}
}
