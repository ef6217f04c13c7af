package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
)

func testService(eps ...string) *dataplane.Service {
	s := &dataplane.Service{
		ID:        dataplane.ID{Namespace: "default", Name: "web", Protocol: dataplane.TCP, Family: dataplane.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.10"), ServicePort: 80,
	}
	for _, e := range eps {
		s.Endpoints = append(s.Endpoints, dataplane.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true, Local: strings.HasPrefix(e, "10.244.1.")})
	}
	return s
}

// render prints what is wanted, one thing a line.
func render(w *wanted) []string {
	var out []string
	for _, s := range w.servers {
		out = append(out, fmt.Sprintf("server %s affinity %d %v", s.key, s.affinity, s.dests))
	}
	for _, k := range w.idle {
		out = append(out, "idle "+k.String())
	}
	for _, a := range w.addrs {
		out = append(out, "address "+a.String())
	}
	for _, e := range w.entries {
		line := fmt.Sprintf("%s %s", strings.TrimPrefix(string(e.set), "KUBE-IPVS-"), e.addr)
		if e.port != 0 {
			line += fmt.Sprintf(":%d/%s", e.port, e.proto)
		}
		if e.other.IsValid() {
			line += " " + e.other.String()
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func TestPlan(t *testing.T) {
	node := nodeAddrs{all: map[netip.Addr]bool{netip.MustParseAddr("172.31.77.11"): true, netip.MustParseAddr("fd00::1"): true},
		nodePort: []netip.Addr{netip.MustParseAddr("172.31.77.11"), netip.MustParseAddr("fd00::1")}}
	for _, c := range []struct {
		name   string
		change func(*dataplane.Service)
		want   []string
	}{
		{name: "cluster address", want: []string{
			"ACTIVE 10.96.0.10:80/tcp", "ADDRS 10.96.0.10", "CLUSTER 10.96.0.10:80/tcp",
			"LOOPBACK 10.244.1.5:8080/tcp 10.244.1.5/32", "address 10.96.0.10",
			"server 10.96.0.10:80/tcp affinity 0 [10.244.1.5:8080 10.244.2.6:8080]"}},
		{name: "no endpoints", change: func(s *dataplane.Service) { s.Endpoints, s.NodePort = nil, 30080 }, want: []string{
			"ADDRS 10.96.0.10", "REFUSE 172.31.77.11:30080/tcp", "address 10.96.0.10",
			"idle 10.96.0.10:80/tcp", "idle 172.31.77.11:30080/tcp"}},
		{name: "external policy Local without an endpoint here", change: func(s *dataplane.Service) {
			s.Endpoints, s.NodePort, s.ExternalLocal, s.AffinityTimeout = s.Endpoints[1:], 30080, true, time.Minute
		}, want: []string{
			"ACTIVE 10.96.0.10:80/tcp", "ADDRS 10.96.0.10", "CLUSTER 10.96.0.10:80/tcp", "DROP 172.31.77.11:30080/tcp",
			"address 10.96.0.10", "idle 172.31.77.11:30080/tcp", "server 10.96.0.10:80/tcp affinity 60 [10.244.2.6:8080]"}},
		{name: "an external address that is the node's own stays where it is", change: func(s *dataplane.Service) {
			s.Endpoints = s.Endpoints[1:]
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("172.31.77.11")}
		}, want: []string{
			"ACTIVE 10.96.0.10:80/tcp", "ACTIVE 172.31.77.11:80/tcp", "ADDRS 10.96.0.10", "CLUSTER 10.96.0.10:80/tcp",
			"EXTERNAL 172.31.77.11:80/tcp", "address 10.96.0.10",
			"server 10.96.0.10:80/tcp affinity 0 [10.244.2.6:8080]", "server 172.31.77.11:80/tcp affinity 0 [10.244.2.6:8080]"}},
		{name: "load balancer with source ranges", change: func(s *dataplane.Service) {
			s.Endpoints = s.Endpoints[1:]
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7")}
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("2001:db8::/32")}
		}, want: []string{
			"ACTIVE 10.96.0.10:80/tcp", "ACTIVE 192.0.2.7:80/tcp", "ADDRS 10.96.0.10", "ADDRS 192.0.2.7", "CLUSTER 10.96.0.10:80/tcp",
			"EXTERNAL 192.0.2.7:80/tcp", "GUARDED 192.0.2.7:80/tcp", "SOURCES 192.0.2.7:80/tcp 0.0.0.0/1", "SOURCES 192.0.2.7:80/tcp 128.0.0.0/1",
			"SOURCES 192.0.2.7:80/tcp 192.0.2.7/32", "address 10.96.0.10", "address 192.0.2.7",
			"server 10.96.0.10:80/tcp affinity 0 [10.244.2.6:8080]", "server 192.0.2.7:80/tcp affinity 0 [10.244.2.6:8080]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testService("10.244.1.5:8080", "10.244.2.6:8080")
			if c.change != nil {
				c.change(s)
			}
			w, err := plan(s, node)
			if err != nil {
				t.Fatal(err)
			}
			if got := render(w); !slices.Equal(got, c.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
		})
	}
	bad := testService()
	bad.ServicePort = 0
	if _, err := plan(bad, node); err == nil {
		t.Error("a service without port was planned")
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	if _, err := New(Config{Scheduler: "fastest"}); err == nil || !strings.Contains(err.Error(), "rr") {
		t.Errorf("an unknown scheduler gave %v", err)
	}
	bit := 40
	if _, err := New(Config{MasqueradeBit: &bit}); err == nil {
		t.Error("bit 40 was taken")
	}
}
