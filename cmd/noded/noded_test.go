package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tripod-cluster/tripod/nodeagent/config"
)

// noded runs the command line with a configuration file of the given text.
func noded(t *testing.T, conf string, args ...string) (string, error) {
	t.Helper()
	p := filepath.Join(t.TempDir(), "noded.yaml")
	if err := os.WriteFile(p, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	c := command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(append([]string{"--config", p}, args...))
	err := c.ExecuteContext(context.Background())
	return out.String(), err
}

func TestConfigPrintsWhatIsInForce(t *testing.T) {
	out, err := noded(t, "proxy: {mode: ipvs}\n", "config")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse([]byte(out))
	if err != nil || c.Proxy.Mode != "ipvs" || c.MaxPods != 110 {
		t.Errorf("%+v, %v", c, err)
	}
	if out, err := noded(t, "proxy: {mode: ipvs}\n", "config", "--defaults"); err != nil || !strings.Contains(out, "mode: iptables") {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := noded(t, "nodNme: x\n", "config"); err == nil || !strings.Contains(err.Error(), `unknown field "nodNme"`) {
		t.Errorf("got %v", err)
	}
}

func TestBadInputsAreRefusedWithTheNextStep(t *testing.T) {
	state := t.TempDir()
	for name, tc := range map[string]struct {
		conf string
		args []string
		want string
	}{
		"join with half a line":    {"", []string{"join", "tripod1.node.abcdef"}, "controld token"},
		"join with a damaged line": {"", []string{"join", "tripod1.node.abcdef.x.y@host"}, "controld token"},
		"two node names":           {"nodeName: a\n", []string{"join", "--node-name", "b", "tripod1.node.abcdef.0123456789abcdef." + strings.Repeat("ab", 32) + "@127.0.0.1:1"}, "contradicts nodeName a"},
		"run before join":          {"stateDir: " + state + "\n", []string{"run"}, "noded join TOKEN@HOST"},
		"status in another form":   {"", []string{"status", "-o", "yaml"}, "-o json"},
		"unknown command":          {"", []string{"start"}, "unknown command"},
	} {
		if _, err := noded(t, tc.conf, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStatusOfAHostThatHasNotJoined(t *testing.T) {
	out, err := noded(t, "stateDir: "+t.TempDir()+"\n", "status", "-o", "json")
	var code exitCode
	if !errors.As(err, &code) || code != 2 {
		t.Errorf("exit %v", err)
	}
	var s struct {
		Joined   bool
		Problems []string
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Joined || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "noded join") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestStatusTellsEveryProblem(t *testing.T) {
	well := nodeStatus{Running: true, Joined: true, Ready: "True"}
	well.ServingCert = well.ServingCert.AddDate(1, 0, 0)
	if p := well.problems(); len(p) != 0 {
		t.Errorf("problems of a well node: %v", p)
	}
	bad := nodeStatus{Running: true, Ready: "False (NetworkNotReady: x)", Network: "no route", Proxy: "stuck", RuntimeProblem: "gone", SyncLoop: "hangs"}
	if p := bad.problems(); len(p) != 6 {
		t.Errorf("%d problems: %v", len(p), p)
	}
}

func TestAReloadSwitchesServicesOnlyForWhatConcernsThem(t *testing.T) {
	a := config.Default().Proxy
	b := a
	b.Scheduler = "lc"
	if !samePlane(a, b) {
		t.Error("iptables has no scheduler, and is written again for it")
	}
	a.Mode, b.Mode = "ipvs", "ipvs"
	if samePlane(a, b) {
		t.Error("another scheduler of ipvs is not taken up")
	}
	b = a
	b.Mode = "iptables"
	if samePlane(a, b) {
		t.Error("another mode is not taken up")
	}
	b = a
	b.NodePortAddresses = []string{"192.0.2.0/24"}
	if samePlane(a, b) {
		t.Error("other NodePort addresses are not taken up")
	}
}

func TestNodeIPIsTheConfiguredOneOrTheFirstOfTheInterface(t *testing.T) {
	c := config.Default()
	c.NodeIP = "192.0.2.5"
	if ip, err := nodeIP(c, nil); err != nil || ip.String() != "192.0.2.5" {
		t.Errorf("configured: %v, %v", ip, err)
	}
	c.NodeIP = ""
	if _, err := nodeIP(c, nil); err == nil || !strings.Contains(err.Error(), "set nodeIP") {
		t.Errorf("without peers: %v", err)
	}
	// Each of an interface's addresses leads to its first.
	l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	defer netlink.LinkDel(l)
	for _, a := range []string{"192.0.2.1/24", "198.51.100.1/24", "192.0.2.10/24"} {
		ad, err := netlink.ParseAddr(a)
		if err == nil {
			err = netlink.AddrAdd(l, ad)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := firstOnInterface(netip.MustParseAddr("192.0.2.10")); err != nil || got.String() != "192.0.2.1" {
		t.Errorf("a later address leads to %v, %v", got, err)
	}
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		var first netip.Addr
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() || i.Flags&net.FlagLoopback != 0 {
				continue
			}
			if !first.IsValid() {
				first = p.Addr()
			}
			if got, err := firstOnInterface(p.Addr()); err != nil || got != first {
				t.Errorf("%s: %v, %v", p, got, err)
			}
		}
	}
	if _, err := firstOnInterface(netip.MustParseAddr("203.0.113.77")); err == nil {
		t.Error("an address that no interface has was found")
	}
}

func TestResetEmptiesTheStateButForTheImages(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	c.ImagesDir = filepath.Join(c.StateDir, "images")
	for _, f := range []string{"ca.crt", "pki/client.pem", "pods/x/y", "images/a.tar"} {
		p := filepath.Join(c.StateDir, f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeState(c); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(c.StateDir)
	if err != nil || len(left) != 1 || left[0].Name() != "images" {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(c.ImagesDir, "a.tar")); err != nil {
		t.Error(err)
	}
}
