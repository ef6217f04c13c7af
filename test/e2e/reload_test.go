package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hello are the ways to the application of `make up` that go through host i's service rules.
func hello(t *testing.T, i int) []route {
	t.Helper()
	s, err := client(t, "").CoreV1().Services("default").Get(t.Context(), "hello", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return []route{
		{outside(), fmt.Sprintf("http://%s:%d", cluster.Addr(i), s.Spec.Ports[0].NodePort)},
		{cluster.Host(i), "http://" + s.Spec.ClusterIP},
	}
}

// TestReload: `systemctl reload noded` takes up the configuration file. What cannot be taken up changes nothing and is
// named in the journal, with its reason; the application answers throughout, and noded is not restarted. That a mode
// which the kernel can have is switched to, and leaves nothing of the old one, is cmd/noded's own test, which
// `make guest` runs on a kernel that has IPVS; here it is seen too where the hosts' kernel has it.
func TestReload(t *testing.T) {
	whole(t)
	waitReady(t, "default", "app=hello", 3)
	const i = 3
	const file, kept = "/etc/noded/noded.yaml", "/root/noded.yaml.kept"
	restore := "if test -e " + kept + "; then cp -a " + kept + " " + file + " && systemctl reload noded && rm " + kept + "; fi"
	in(t, i, "grep -q '^proxy:' "+file+" && exit 1; cp -a "+file+" "+kept)
	t.Cleanup(func() { in(t, i, restore) })
	ipvs := strings.TrimSpace(in(t, i, "modprobe -q ip_vs || true; test -e /proc/net/ip_vs && echo yes || true")) == "yes"
	pid := in(t, i, "systemctl show -p MainPID --value noded")

	// chains are the rules that only mode iptables has.
	chains := func() string {
		return in(t, i, "iptables-save -t nat | grep -oE '^:KUBE-(SVC|SEP)[^ ]*' | sort || true")
	}
	if chains() == "" {
		t.Fatal("there is nothing of mode iptables on the host")
	}
	// reload changes the file, reloads, and waits until the journal has all of words.
	reload := func(change string, words ...string) {
		t.Helper()
		cursor := strings.TrimSpace(in(t, i, "journalctl -u noded -n 0 --show-cursor | sed -n 's/^-- cursor: //p'"))
		in(t, i, change+"\nsystemctl reload noded")
		eventually(t, time.Minute, fmt.Sprintf("the journal to say %q", words), func() error {
			said, err := tryIn(i, "journalctl -u noded -o cat --after-cursor '"+cursor+"'")
			for _, w := range words {
				if err == nil && !strings.Contains(said, w) {
					err = fmt.Errorf("%q is not in: %s", w, said)
				}
			}
			return err
		})
	}
	mode := func(want string) {
		t.Helper()
		if out := in(t, i, "noded status -o json"); !strings.Contains(out, `"proxyMode": "`+want+`"`) && !strings.Contains(out, `"proxyMode":"`+want+`"`) {
			t.Errorf("noded status does not say mode %s: %s", want, out)
		}
	}

	l := startLoad(t, hello(t, i))
	l.more(t, 10)
	before := chains()
	same := func() {
		t.Helper()
		l.more(t, 10)
		mode("iptables")
		if after := chains(); after != before {
			t.Errorf("the rules were\n%sand are\n%s", before, after)
		}
	}
	set := func(text string) string {
		return fmt.Sprintf("cp -a %s %s; printf '%%s\\n' '%s' >>%s", kept, file, text, file)
	}

	reload(set("proxy: {mode: ipvs"), "configuration not reloaded", file, "line")
	same()
	reload(set("proxy: {mode: nftables}"), "configuration not reloaded", "proxy.mode", "not one of iptables, ipvs")
	same()
	if ipvs {
		reload(set("proxy: {mode: ipvs}"), "configuration reloaded", "proxyMode=ipvs")
		l.more(t, 10)
		mode("ipvs")
		if left := chains(); left != "" {
			t.Errorf("in mode ipvs there is of mode iptables:\n%s", left)
		}
	} else {
		reload(set("proxy: {mode: ipvs}"), "service mode not changed", "mode=ipvs", "load module ip_vs, or choose mode iptables")
		same()
	}
	reload(fmt.Sprintf("cp -a %s %s", kept, file), "configuration reloaded")
	l.more(t, 10)
	mode("iptables")
	if ipvs {
		in(t, i, "! ip link show kube-ipvs0 2>/dev/null")
	} else {
		same()
	}
	l.finish(t)
	if now := in(t, i, "systemctl show -p MainPID --value noded"); now != pid {
		t.Errorf("noded was process %s and is %s: a reload is no restart", strings.TrimSpace(pid), strings.TrimSpace(now))
	}
	if out := in(t, i, "noded status"); !strings.Contains(out, "all is well") {
		t.Errorf("noded status: %s", out)
	}
}
