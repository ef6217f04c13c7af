package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/xtables"
)

// render prints a plan as iptables commands, sorted by chain, with the hashes of names taken out.
func render(s *dataplane.Service, p *xtables.Plan) []string {
	n := namesOf(s)
	pairs := []string{n.svc, "SVC", n.svl, "SVL", n.ext, "EXT", n.fw, "FW"}
	for _, e := range s.Endpoints {
		pairs = append(pairs, sepName(s, e), "SEP("+e.Addr.Addr().String()+")")
	}
	short := strings.NewReplacer(pairs...)
	var out []string
	line := func(table, chain string, r xtables.Rule) {
		r.Comment = ""
		out = append(out, short.Replace(fmt.Sprintf("%s %s: %s", table, chain, r.String())))
	}
	for _, e := range p.Shared {
		line(e.Table, e.Chain, e.Rule)
	}
	for _, c := range p.Chains {
		for _, r := range c.Rules {
			line(c.Table, c.Name, r)
		}
	}
	return out
}

func TestPlan(t *testing.T) {
	pol := policy{clusterCIDR: netip.MustParsePrefix("10.244.0.0/16")}
	for _, c := range []struct {
		name   string
		change func(*dataplane.Service)
		pol    *policy
		want   []string
	}{
		{name: "cluster address", want: []string{
			"nat KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j SVC",
			"nat SVC: ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ",
			"nat SVC: --probability 0.50000 -j SEP(10.244.1.5)",
			"nat SVC: -j SEP(10.244.2.6)",
			"nat SEP(10.244.1.5): -s 10.244.1.5/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.1.5): -p tcp -j DNAT --to-destination 10.244.1.5:8080",
			"nat SEP(10.244.2.6): -s 10.244.2.6/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.2.6): -p tcp -j DNAT --to-destination 10.244.2.6:8080",
		}},
		{name: "unknown pod range: nothing is masqueraded but hairpins", pol: &policy{}, change: func(s *dataplane.Service) { s.Endpoints = s.Endpoints[:1] }, want: []string{
			"nat KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j SVC",
			"nat SVC: -j SEP(10.244.1.5)",
			"nat SEP(10.244.1.5): -s 10.244.1.5/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.1.5): -p tcp -j DNAT --to-destination 10.244.1.5:8080",
		}},
		{name: "no endpoints", change: func(s *dataplane.Service) { s.Endpoints, s.NodePort = nil, 30080 }, want: []string{
			"filter KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j REJECT",
			"filter KUBE-EXTERNAL-SERVICES: -p tcp --dport 30080 --dst-type LOCAL -j REJECT",
		}},
		{name: "node port", change: func(s *dataplane.Service) { s.Endpoints, s.NodePort = s.Endpoints[:1], 30080 }, want: []string{
			"nat KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j SVC",
			"nat KUBE-NODEPORTS: -p tcp --dport 30080 -j EXT",
			"nat SVC: ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ",
			"nat SVC: -j SEP(10.244.1.5)",
			"nat SEP(10.244.1.5): -s 10.244.1.5/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.1.5): -p tcp -j DNAT --to-destination 10.244.1.5:8080",
			"nat EXT: -j KUBE-MARK-MASQ",
			"nat EXT: -j SVC",
		}},
		{name: "external policy Local without an endpoint here", change: func(s *dataplane.Service) {
			s.Endpoints, s.NodePort, s.ExternalLocal, s.HealthCheckNodePort = s.Endpoints[1:], 30080, true, 32000
		}, want: []string{
			"nat KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j SVC",
			"filter KUBE-EXTERNAL-SERVICES: -p tcp --dport 30080 --dst-type LOCAL -j DROP",
			"nat KUBE-NODEPORTS: -p tcp --dport 30080 -j EXT",
			"filter KUBE-NODEPORTS: -p tcp --dport 32000 -j ACCEPT",
			"nat SVC: ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ",
			"nat SVC: -j SEP(10.244.2.6)",
			"nat SEP(10.244.2.6): -s 10.244.2.6/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.2.6): -p tcp -j DNAT --to-destination 10.244.2.6:8080",
			"nat EXT: -s 10.244.0.0/16 -j SVC",
			"nat EXT: --src-type LOCAL -j KUBE-MARK-MASQ",
			"nat EXT: --src-type LOCAL -j SVC",
		}},
		{name: "load balancer with source ranges and affinity", change: func(s *dataplane.Service) {
			s.Endpoints, s.AffinityTimeout = s.Endpoints[:1], time.Minute
			s.LoadBalancerIPs = []netip.Addr{addr("192.0.2.7")}
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}
		}, want: []string{
			"nat KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j SVC",
			"filter KUBE-PROXY-FIREWALL: -d 192.0.2.7/32 -p tcp --dport 80 -j DROP",
			"nat KUBE-SERVICES: -d 192.0.2.7/32 -p tcp --dport 80 -j FW",
			"nat SVC: ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ",
			"nat SVC: --rcheck --seconds 60 --reap --name SEP(10.244.1.5) -j SEP(10.244.1.5)",
			"nat SVC: -j SEP(10.244.1.5)",
			"nat SEP(10.244.1.5): -s 10.244.1.5/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.1.5): -p tcp --set --name SEP(10.244.1.5) -j DNAT --to-destination 10.244.1.5:8080",
			"nat EXT: -j KUBE-MARK-MASQ",
			"nat EXT: -j SVC",
			"nat FW: -s 198.51.100.0/24 -j EXT",
			"nat FW: -s 192.0.2.7/32 -j EXT",
		}},
		{name: "internal policy Local", change: func(s *dataplane.Service) { s.InternalLocal = true }, want: []string{
			"nat KUBE-SERVICES: -d 10.96.0.10/32 -p tcp --dport 80 -j SVL",
			"nat SVL: ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ",
			"nat SVL: -j SEP(10.244.1.5)",
			"nat SEP(10.244.1.5): -s 10.244.1.5/32 -j KUBE-MARK-MASQ",
			"nat SEP(10.244.1.5): -p tcp -j DNAT --to-destination 10.244.1.5:8080",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := web("10.244.1.5:8080", "10.244.2.6:8080")
			if c.change != nil {
				c.change(s)
			}
			use := pol
			if c.pol != nil {
				use = *c.pol
			}
			p, err := plan(s, use)
			if err != nil {
				t.Fatal(err)
			}
			got := render(s, p)
			slices.Sort(got)
			want := slices.Sorted(slices.Values(c.want))
			if !slices.Equal(got, want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
		})
	}
}

func TestPlanRefusesWhatCannotBeWritten(t *testing.T) {
	for what, change := range map[string]func(*dataplane.Service){
		"no cluster address":       func(s *dataplane.Service) { s.ClusterIP = netip.Addr{} },
		"address of other family":  func(s *dataplane.Service) { s.ClusterIP = addr("fd00::1") },
		"no port":                  func(s *dataplane.Service) { s.ServicePort = 0 },
		"endpoint of other family": func(s *dataplane.Service) { s.Endpoints[0].Addr = addrPort("[fd00::1]:80") },
		"endpoint without port":    func(s *dataplane.Service) { s.Endpoints[0].Addr = addrPort("10.244.1.5:0") },
	} {
		s := web("10.244.1.5:8080")
		change(s)
		if _, err := plan(s, policy{}); err == nil {
			t.Errorf("%s: planned", what)
		}
	}
}

// kube-proxy's chain names are known by heart in the field; ours are the same.
func TestChainNamesAreTheFamiliarOnes(t *testing.T) {
	s := &dataplane.Service{ID: dataplane.ID{Namespace: "default", Name: "kubernetes", Port: "https", Protocol: dataplane.TCP, Family: dataplane.IPv4}}
	if got := namesOf(s).svc; got != "KUBE-SVC-NPX46M4PTMTKRN6Y" {
		t.Errorf("default/kubernetes:https has chain %s", got)
	}
}
