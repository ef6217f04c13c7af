package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/nodeagent/volumes"
)

func TestResolverPolicies(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("# c\nnameserver 192.0.2.53\nsearch old.test\nsearch corp.test.\noptions timeout:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: Config{ResolvConf: conf, ClusterDomain: "cluster.local", ClusterDNS: []string{"10.96.0.10"}}}
	two := "2"
	for _, c := range []struct {
		name                       string
		spec                       v1.PodSpec
		servers, searches, options []string
	}{
		{"cluster first", v1.PodSpec{}, []string{"10.96.0.10"}, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.test"}, []string{"ndots:5"}},
		{"on the host's network", v1.PodSpec{HostNetwork: true}, []string{"192.0.2.53"}, []string{"corp.test"}, []string{"timeout:1"}},
		{"with the host's network", v1.PodSpec{HostNetwork: true, DNSPolicy: v1.DNSClusterFirstWithHostNet}, []string{"10.96.0.10"}, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.test"}, []string{"ndots:5"}},
		{"default", v1.PodSpec{DNSPolicy: v1.DNSDefault}, []string{"192.0.2.53"}, []string{"corp.test"}, []string{"timeout:1"}},
		{"none, own", v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"x.test"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}},
			[]string{"1.1.1.1"}, []string{"x.test"}, []string{"ndots:2", "edns0"}},
		{"own over the cluster's", v1.PodSpec{DNSConfig: &v1.PodDNSConfig{Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}}}},
			[]string{"10.96.0.10"}, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.test"}, []string{"ndots:2"}},
	} {
		got, err := a.dnsConfig(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: c.spec})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Servers, c.servers) || !slices.Equal(got.Searches, c.searches) || !slices.Equal(got.Options, c.options) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	a.cfg.ClusterDNS = nil
	got, err := a.dnsConfig(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}})
	if err != nil || !slices.Equal(got.Servers, []string{"192.0.2.53"}) {
		t.Errorf("without a cluster resolver: %v %v", got, err)
	}
}

func TestHostsFile(t *testing.T) {
	a := &Agent{cfg: Config{ClusterDomain: "cluster.local"}, volumes: volumes.New(t.TempDir(), nil, nil, nil)}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{Subdomain: "web",
		HostAliases: []v1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"a.test", "b.test"}}}}}
	if err := os.MkdirAll(a.volumes.PodDir("u"), 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := a.writeHosts(p, []string{"10.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "10.0.0.1\tweb-0.web.ns.svc.cluster.local\tweb-0", "192.0.2.9\ta.test\tb.test"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
}

func TestOlderNewsOfAPodIsDropped(t *testing.T) {
	c := newPodCache()
	at := func(rv, phase string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: rv}, Status: v1.PodStatus{Phase: v1.PodPhase(phase)}}
	}
	c.told(at("10", "Running"))
	if got := c.told(at("9", "Pending")); got.Status.Phase != v1.PodRunning {
		t.Error("a late event went back in time")
	}
	c.computed("u", v1.PodStatus{Phase: v1.PodFailed})
	if got := c.told(at("11", "Running")); got.Status.Phase != v1.PodRunning || c.get("u").Status.Phase != v1.PodFailed {
		t.Error("what the API told and what the agent computed are mixed up")
	}
}
