package iptables

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
)

func addr(s string) netip.Addr         { return netip.MustParseAddr(s) }
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func endpoints(addrs ...string) []dataplane.Endpoint {
	var out []dataplane.Endpoint
	for _, a := range addrs {
		out = append(out, dataplane.Endpoint{Addr: addrPort(a), Ready: true, Serving: true, Local: strings.HasPrefix(a, "10.244.1.")})
	}
	return out
}

func web(eps ...string) *dataplane.Service {
	return &dataplane.Service{
		ID:        dataplane.ID{Namespace: "default", Name: "web", Port: "http", Protocol: dataplane.TCP, Family: dataplane.IPv4},
		ClusterIP: addr("10.96.0.10"), ServicePort: 80, Endpoints: endpoints(eps...),
	}
}

// rich uses every kind of rule.
func rich() *dataplane.Service {
	s := web("10.244.1.5:8080", "10.244.2.6:8080")
	s.NodePort, s.HealthCheckNodePort, s.ExternalLocal, s.AffinityTimeout = 30080, 32000, true, 3*time.Hour
	s.LoadBalancerIPs = []netip.Addr{addr("192.0.2.7")}
	s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	return s
}

func named(s *dataplane.Service, name, ip string) *dataplane.Service {
	s.Name, s.ClusterIP = name, addr(ip)
	return s
}

func open(t *testing.T) *Backend {
	t.Helper()
	b, err := New(Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Cleanup(context.Background()); err != nil {
			t.Error(err)
		}
		b.Close()
	})
	return b
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

var stamps = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// saved is what iptables-save prints, without times and counters.
func saved(t *testing.T) string {
	t.Helper()
	return stamps.ReplaceAllString(run(t, "iptables-nft-save"), "")
}

func sync(t *testing.T, b *Backend, services ...*dataplane.Service) {
	t.Helper()
	if err := b.Sync(t.Context(), services); err != nil {
		t.Fatal(err)
	}
}

func TestIptablesPrintsEveryRule(t *testing.T) {
	b := open(t)
	sctp := named(web("10.244.1.5:8080"), "signal", "10.96.0.12")
	sctp.Protocol = dataplane.SCTP
	udp := named(web("10.244.1.5:53"), "dns", "10.96.0.13")
	udp.Protocol = dataplane.UDP
	sync(t, b, rich(), named(web(), "none", "10.96.0.11"), sctp, udp)
	save := run(t, "iptables-nft-save")
	for _, tool := range []string{save, run(t, "iptables-nft", "-S"), run(t, "iptables-nft", "-t", "nat", "-S")} {
		for _, bad := range []string{"ncompatible", "unsupported", "[unsupported", "UNKNOWN"} {
			if strings.Contains(tool, bad) {
				t.Errorf("iptables complains %q:\n%s", bad, tool)
			}
		}
	}
	for _, want := range []string{
		`-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`,
		`-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "default/web:http cluster IP" -j KUBE-SVC-`,
		`-A KUBE-SERVICES -d 10.96.0.11/32 -p tcp -m tcp --dport 80 -m comment --comment "default/none:http has no endpoints" -j REJECT --reject-with icmp-port-unreachable`,
		`-A KUBE-SERVICES -d 10.96.0.12/32 -p sctp -m sctp --dport 80`,
		`-A KUBE-SERVICES -d 10.96.0.13/32 -p udp -m udp --dport 80`,
		`-m statistic --mode random --probability 0.50000000000 -m comment --comment "default/web:http -> 10.244.1.5:8080"`,
		`-m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-`,
		`-j DNAT --to-destination 10.244.2.6:8080`,
		`-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`,
		`-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`,
		`-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED`,
		`! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL`,
	} {
		if !strings.Contains(save, want) {
			t.Errorf("iptables-save does not print %q:\n%s", want, save)
		}
	}
	// iptables can read its own output back: nothing in it is made up.
	restore := exec.Command("iptables-nft-restore", "--test")
	restore.Stdin = strings.NewReader(save)
	if out, err := restore.CombinedOutput(); err != nil {
		t.Errorf("iptables-nft-restore refuses what iptables-save printed: %v\n%s", err, out)
	}
}

func TestIPv6(t *testing.T) {
	b := open(t)
	s := web("10.244.1.5:8080")
	sync(t, b, s)
	if out := run(t, "ip6tables-nft-save"); strings.Contains(out, "KUBE") {
		t.Errorf("without IPv6 services there are IPv6 rules:\n%s", out)
	}
	six := named(web(), "web", "fd00:96::10")
	six.Family = dataplane.IPv6
	six.Endpoints = []dataplane.Endpoint{{Addr: addrPort("[fd00:244::5]:8080"), Ready: true, Serving: true}}
	none := named(web(), "none", "fd00:96::11")
	none.Family = dataplane.IPv6
	if err := b.Update(t.Context(), []*dataplane.Service{six, none}); err != nil {
		t.Fatal(err)
	}
	out := run(t, "ip6tables-nft-save")
	for _, want := range []string{"-d fd00:96::10/128 -p tcp -m tcp --dport 80", "-j DNAT --to-destination [fd00:244::5]:8080", "--reject-with icmp6-port-unreachable", "-j MASQUERADE --random-fully"} {
		if !strings.Contains(out, want) {
			t.Errorf("ip6tables-save does not print %q:\n%s", want, out)
		}
	}
	if err := b.Delete(t.Context(), []dataplane.ID{six.ID, none.ID}); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "ip6tables-nft-save"); strings.Contains(out, "fd00:96::1") {
		t.Errorf("after removal:\n%s", out)
	}
}

// However the rules came to be, they are the same.
func TestUpdateAndSyncAgree(t *testing.T) {
	b := open(t)
	other := named(web("10.244.1.9:80"), "other", "10.96.0.20")
	sync(t, b, other)
	before := saved(t)
	steps := []*dataplane.Service{web(), web("10.244.1.5:8080"), rich(), web("10.244.2.6:8080", "10.244.2.7:8080", "10.244.1.5:8080")}
	for i, s := range steps {
		if err := b.Update(t.Context(), []*dataplane.Service{s}); err != nil {
			t.Fatal(err)
		}
		updated := saved(t)
		sync(t, b, other, s)
		if again := saved(t); again != updated {
			t.Errorf("step %d: a sync after the update changed the rules:\n%s\nfrom:\n%s", i, again, updated)
		}
	}
	if err := b.Delete(t.Context(), []dataplane.ID{steps[0].ID}); err != nil {
		t.Fatal(err)
	}
	if after := saved(t); after != before {
		t.Errorf("after the service is gone:\n%s\nbefore it came:\n%s", after, before)
	}
}

func TestRepair(t *testing.T) {
	b := open(t)
	s := rich()
	n := namesOf(s)
	sync(t, b, s, named(web(), "none", "10.96.0.11"))
	want := saved(t)
	for what, harm := range map[string][][]string{
		"a rule lost":                {{"-t", "nat", "-D", n.svc, "1"}},
		"a chain emptied":            {{"-t", "nat", "-F", sepName(s, s.Endpoints[0])}},
		"a rule of ours amid":        {{"-t", "nat", "-I", n.svc, "-j", "RETURN"}},
		"an entry lost":              {{"-t", "nat", "-D", "KUBE-SERVICES", "1"}},
		"entries after the tail":     {{"-t", "nat", "-A", "KUBE-SERVICES", "-d", "10.96.0.99", "-j", "RETURN"}},
		"a tail lost":                {{"-t", "nat", "-D", "KUBE-SERVICES", "3"}},
		"a jump lost":                {{"-t", "nat", "-D", "PREROUTING", "1"}},
		"a chain of nobody":          {{"-t", "nat", "-N", "KUBE-SVC-AAAAAAAAAAAAAAAA"}},
		"everything lost":            {{"-t", "nat", "-F"}, {"-t", "nat", "-X"}, {"-F"}, {"-X"}},
		"a rule changed by a person": {{"-t", "nat", "-R", "KUBE-MARK-MASQ", "1", "-j", "MARK", "--or-mark", "0x8000"}},
	} {
		for _, args := range harm {
			run(t, "iptables-nft", args...)
		}
		if saved(t) == want {
			t.Errorf("%s: the harm did nothing", what)
		}
		sync(t, b, s, named(web(), "none", "10.96.0.11"))
		got := saved(t)
		if sorted(got) != sorted(want) {
			t.Errorf("%s: after repair\n%s\nwant\n%s", what, got, want)
		}
		if !strings.Contains(got, "KUBE-NODEPORTS\n-A KUBE-SVC") {
			t.Errorf("%s: the node port rule is not the last of KUBE-SERVICES:\n%s", what, got)
		}
	}
}

// A firewall tool that flushes everything costs seconds, not the time to the next verification.
func TestRulesLostToOthersAreNoticed(t *testing.T) {
	b := open(t)
	s := rich()
	sync(t, b, s)
	want := saved(t)
	maintain := func() {
		t.Helper()
		if next, err := b.Maintain(t.Context()); err != nil || next <= 0 {
			t.Fatalf("Maintain: next %s, %v", next, err)
		}
	}
	drifted := func() bool {
		t.Helper()
		d, err := b.families[0].w.Drifted()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, change := range []*dataplane.Service{web("10.244.1.5:8080"), rich()} {
		if err := b.Update(t.Context(), []*dataplane.Service{change}); err != nil {
			t.Fatal(err)
		}
		if drifted() {
			t.Error("our own write is taken for someone else's")
		}
	}
	for _, args := range [][]string{{"-t", "nat", "-F"}, {"-t", "nat", "-X"}, {"-F"}, {"-X"}} {
		run(t, "iptables-nft", args...)
	}
	if !drifted() {
		t.Error("the loss of everything goes unnoticed")
	}
	maintain()
	if got := saved(t); sorted(got) != sorted(want) {
		t.Errorf("after the loss of everything:\n%s", got)
	}
	if drifted() {
		t.Error("the repair is taken for someone else's doing")
	}
	if err := b.Update(t.Context(), []*dataplane.Service{web("10.244.1.5:8080")}); err != nil {
		t.Errorf("an update after a repair: %v", err)
	}
}

// sorted forgets the order of entries in shared chains, which is not defined.
func sorted(s string) string {
	out := strings.Split(s, "\n")
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func TestForeignRulesStay(t *testing.T) {
	run(t, "iptables-nft", "-t", "nat", "-N", "DOCKER")
	run(t, "iptables-nft", "-t", "nat", "-A", "PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "DOCKER")
	run(t, "iptables-nft", "-P", "FORWARD", "DROP")
	run(t, "iptables-nft", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
	run(t, "iptables-nft", "-N", "KUBE-FIREWALL")
	run(t, "iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "23", "-j", "ACCEPT")
	t.Cleanup(func() {
		for _, args := range [][]string{{"-P", "FORWARD", "ACCEPT"}, {"-F"}, {"-X"}, {"-t", "nat", "-F"}, {"-t", "nat", "-X"}} {
			run(t, "iptables-nft", args...)
		}
	})
	before := saved(t)
	b := open(t)
	sync(t, b, rich())
	during := saved(t)
	for _, line := range strings.Split(before, "\n") {
		if !strings.Contains(during, line) {
			t.Errorf("lost %q", line)
		}
	}
	if out := run(t, "iptables-legacy", "-S"); !strings.Contains(out, "--dport 23") || strings.Contains(out, "KUBE") {
		t.Errorf("legacy rules:\n%s", out)
	}
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(saved(t), "\n") {
		if strings.Contains(line, "KUBE") && !strings.Contains(line, "KUBE-FIREWALL") {
			t.Errorf("left behind: %q", line)
		}
	}
	for _, line := range strings.Split(before, "\n") {
		if !strings.Contains(saved(t), line) {
			t.Errorf("clean-up took %q", line)
		}
	}
}

func TestCleanupLeavesNoTables(t *testing.T) {
	b := open(t)
	sync(t, b, rich())
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := saved(t); strings.TrimSpace(out) != "" {
		t.Errorf("after clean-up there is\n%s", out)
	}
	if n := b.Rules(); n != 0 {
		t.Errorf("after clean-up %d rules are counted", n)
	}
	sync(t, b, rich()) // and it can start over
}

var counted = regexp.MustCompile(`\[(\d+):\d+\] (-A .*)`)

// counters reads packet counts by rule.
func counters(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range counted.FindAllStringSubmatch(run(t, "iptables-nft-save", "-c", "-t", "nat"), -1) {
		out[m[2]] = m[1]
	}
	return out
}

func TestCountersOfOtherRulesSurvive(t *testing.T) {
	b := open(t)
	other := named(web("192.0.2.9:9"), "other", "10.96.0.20")
	other.Protocol = dataplane.UDP
	s := web("10.244.1.5:8080", "10.244.1.6:8080")
	sync(t, b, s, other)
	run(t, "ip", "route", "add", "10.96.0.0/16", "dev", "lo")
	defer run(t, "ip", "route", "del", "10.96.0.0/16", "dev", "lo")
	c, err := net.Dial("udp", "10.96.0.20:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write([]byte("hello")) // nobody is there; only the counters matter
	busy := func() (n int) {
		for rule, c := range counters(t) {
			if strings.Contains(rule, "default/other") && c != "0" {
				n++
			}
		}
		return n
	}
	want := busy()
	if want == 0 {
		t.Fatal("the packet counted nowhere")
	}
	if err := b.Update(t.Context(), []*dataplane.Service{web("10.244.1.5:8080")}); err != nil {
		t.Fatal(err)
	}
	if got := busy(); got != want {
		t.Errorf("after another service's update %d rules have counts, want %d", got, want)
	}
	fresh := open(t) // the daemon starts again
	sync(t, fresh, web("10.244.1.5:8080"), other)
	if got := busy(); got != want {
		t.Errorf("after a restart %d rules have counts, want %d", got, want)
	}
}
