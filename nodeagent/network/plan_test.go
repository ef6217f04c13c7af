package network

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func mk(name, ip, cidr string) node {
	n := node{name: name}
	if ip != "" {
		n.ip = netip.MustParseAddr(ip)
	}
	if cidr != "" {
		n.podCIDR = netip.MustParsePrefix(cidr)
	}
	return n
}

func TestPlan(t *testing.T) {
	up := uplink{name: "eth0", mtu: 1500, ip: netip.MustParseAddr("192.0.2.1"), onLink: netip.MustParsePrefix("192.0.2.0/24")}
	self := mk("a", "192.0.2.1", "10.244.0.0/24")
	near, far := mk("b", "192.0.2.2", "10.244.1.0/24"), mk("c", "198.51.100.3", "10.244.2.0/24")
	for _, tc := range []struct {
		name     string
		others   []node
		mode     VXLANMode
		mtu      int
		routes   string // destination>gateway, v for tunnel
		tunnels  int
		podMTU   int
		problems []string
	}{
		{name: "alone", mode: VXLANAuto, podMTU: 1500},
		{name: "on the segment by route", others: []node{near}, mode: VXLANAuto, routes: "10.244.1.0/24>192.0.2.2", podMTU: 1500},
		{name: "elsewhere by tunnel", others: []node{near, far}, mode: VXLANAuto, routes: "10.244.1.0/24>192.0.2.2 10.244.2.0/24>10.244.2.0v", tunnels: 1, podMTU: 1450},
		{name: "always by tunnel", others: []node{near}, mode: VXLANAlways, routes: "10.244.1.0/24>10.244.1.0v", tunnels: 1, podMTU: 1450},
		{name: "never by tunnel", others: []node{near, far}, mode: VXLANNever, routes: "10.244.1.0/24>192.0.2.2", podMTU: 1500},
		{name: "MTU as told", others: []node{far}, mode: VXLANAuto, mtu: 1400, routes: "10.244.2.0/24>10.244.2.0v", tunnels: 1, podMTU: 1400},
		{name: "itself and nodes without pods are passed over", others: []node{self, mk("d", "192.0.2.4", "")}, mode: VXLANAuto, podMTU: 1500},
		{name: "no address yet", others: []node{mk("d", "", "10.244.4.0/24")}, mode: VXLANAuto, podMTU: 1500, problems: []string{"node d"}},
		{name: "overlap with itself", others: []node{mk("d", "192.0.2.4", "10.244.0.0/16")}, mode: VXLANAuto, podMTU: 1500, problems: []string{"10.244.0.0/24 of node a"}},
		{name: "overlap of two others: the first by name has it, whatever the order", others: []node{mk("z", "192.0.2.9", "10.244.1.0/24"), near}, mode: VXLANAuto,
			routes: "10.244.1.0/24>192.0.2.2", podMTU: 1500, problems: []string{"node z"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, problems := makePlan(self, up, tc.others, tc.mode, tc.mtu)
			var got []string
			for _, r := range p.routes {
				s := r.dst.String() + ">" + r.via.String()
				if r.vxlan {
					s += "v"
				}
				got = append(got, s)
			}
			if strings.Join(got, " ") != tc.routes || len(p.tunnel) != tc.tunnels || p.podMTU != tc.podMTU {
				t.Errorf("routes %v, %d tunnels, MTU %d", got, len(p.tunnel), p.podMTU)
			}
			if len(problems) != len(tc.problems) {
				t.Fatalf("problems %v", problems)
			}
			for i := range problems {
				if !strings.Contains(problems[i].Error(), tc.problems[i]) {
					t.Errorf("problem %v does not say %q", problems[i], tc.problems[i])
				}
			}
		})
	}
}

func TestTunnelAddressesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.1.2.1", "10.0.0.1"} {
		m := tunnelMAC(netip.MustParseAddr(a))
		if m[0]&1 != 0 || m[0]&2 == 0 {
			t.Errorf("%s of %s is no local unicast address", m, a)
		}
		if seen[m.String()] != "" {
			t.Errorf("%s and %s share %s", a, seen[m.String()], m)
		}
		seen[m.String()] = a
	}
}

func TestSetElementsCoverExactlyThePrefixes(t *testing.T) {
	els := elements([]netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("192.0.2.7/32")})
	in := func(s string) bool {
		a, inside := netip.MustParseAddr(s), false
		for _, e := range els {
			if k, _ := netip.AddrFromSlice(e.Key); k.Compare(a) <= 0 {
				inside = !e.IntervalEnd
			}
		}
		return inside
	}
	for s, want := range map[string]bool{"10.244.0.0": true, "10.244.255.255": true, "10.245.0.0": false, "10.243.255.255": false,
		"192.0.2.7": true, "192.0.2.8": false, "192.0.2.6": false, "224.0.0.1": true, "239.255.255.255": true, "240.0.0.0": false} {
		if in(s) != want {
			t.Errorf("%s: inside is %v", s, in(s))
		}
	}
}

func TestNodesAreReadByTheirIPv4Side(t *testing.T) {
	got := toNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1.NodeSpec{PodCIDR: "2001:db8::/64", PodCIDRs: []string{"2001:db8::/64", "10.244.3.0/24"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n"}, {Type: v1.NodeExternalIP, Address: "203.0.113.1"},
			{Type: v1.NodeInternalIP, Address: "2001:db8::1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.5"}}}})
	if want := mk("n", "192.0.2.5", "10.244.3.0/24"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestCNIConfiguration(t *testing.T) {
	b, err := cniConfig(netip.MustParsePrefix("10.244.3.7/24"), 1450)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		CNIVersion string `json:"cniVersion"`
		Plugins    []struct {
			Type        string
			HairpinMode bool `json:"hairpinMode"`
			IPMasq      bool `json:"ipMasq"`
			MTU         int
			IPAM        struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if c.CNIVersion != "0.4.0" || len(c.Plugins) != 2 || c.Plugins[0].Type != "bridge" || c.Plugins[1].Type != "portmap" {
		t.Fatalf("%s", b)
	}
	if p := c.Plugins[0]; !p.HairpinMode || p.IPMasq || p.MTU != 1450 || p.IPAM.Ranges[0][0].Subnet != "10.244.3.0/24" {
		t.Errorf("%s", b)
	}
}

func TestAnOperatorsCNIConfigurationIsSeen(t *testing.T) {
	dir := t.TempDir()
	look := func(want string) {
		t.Helper()
		if got, err := foreignConfig(dir); err != nil || got != want {
			t.Errorf("found %q, %v; want %q", got, err, want)
		}
	}
	look("")
	for _, f := range []string{cniFile, "87-podman-bridge.conflist", "README", ".10-tripod.conflist.123"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		look("")
	}
	if err := os.WriteFile(filepath.Join(dir, "05-cilium.conflist"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	look("05-cilium.conflist")
	if got, err := foreignConfig(filepath.Join(dir, "none")); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWritingTheSameConfigurationChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	for i, want := range []bool{true, false} {
		if changed, err := writeCNI(dir, []byte("{}")); err != nil || changed != want {
			t.Errorf("turn %d: changed %v, %v", i, changed, err)
		}
	}
}
