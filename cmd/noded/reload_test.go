package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/dataplane/ipvs"
	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/dataplane/nettest"
)

// daemonEnv makes a process of the test binary noded itself.
const daemonEnv = "TRIPOD_TEST_NODED"

// TestMain runs the tests in a network namespace of their own, as root; nothing of the machine's network is touched.
func TestMain(m *testing.M) {
	if os.Getenv(daemonEnv) == "" {
		nettest.Main(m)
	}
	// A /run of its own, so that the status socket is not that of a noded of this machine.
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "a mount namespace for noded:", err)
		os.Exit(1)
	}
	main()
	os.Exit(0)
}

const (
	clusterIP = "10.96.1.1"
	nodePort  = "30080"
)

// node is a running noded on a stage, with one Service on pods b and far.
type node struct {
	*nettest.Stage
	t     *testing.T
	state string
	cmd   *exec.Cmd
	ended chan error // noded's end
	log   journal
}

// journal is what noded wrote to standard error.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) since(mark int) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.b.Bytes()[mark:])
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Stage: nettest.NewStage(t), t: t, state: t.TempDir()}
	for _, p := range n.Pods {
		p.Serve("tcp", 8080)
	}
	one, port, name, tcp, here, away, ready := int32(80), int32(8080), "http", corev1.ProtocolTCP, "n1", "n2", true
	joined(t, n.state,
		[]corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", ResourceVersion: "1"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: name, Protocol: tcp, Port: one, NodePort: 30080}}}}},
		[]discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", ResourceVersion: "1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{n.B.IP}, NodeName: &here, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
				{Addresses: []string{n.Far.IP}, NodeName: &away, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
			}}})
	return n
}

// configure writes the configuration file with proxy as its section of that name.
func (n *node) configure(proxy string) {
	n.t.Helper()
	text := fmt.Sprintf(`nodeIP: %[2]s
stateDir: %[1]s
imagesDir: %[1]s/images
criEndpoint: unix://%[1]s/no-runtime.sock
network: {mode: none, cniConfDir: %[1]s/cni}
proxy: %[3]s
`, n.state, nettest.NodeIP, proxy)
	if err := os.WriteFile(filepath.Join(n.state, "noded.yaml"), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// start runs noded until stop or the test's end.
func (n *node) start() {
	n.t.Helper()
	cmd := exec.Command("/proc/self/exe", "run", "--config", filepath.Join(n.state, "noded.yaml"))
	cmd.Env = append(os.Environ(), daemonEnv+"=1")
	cmd.Stderr = &n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	n.cmd, n.ended = cmd, ended
	n.t.Cleanup(func() {
		if n.cmd == cmd {
			_ = cmd.Process.Kill()
			<-ended
		}
		if n.t.Failed() {
			n.t.Logf("noded wrote:\n%s", n.log.since(0))
		}
	})
}

// stop ends noded as systemd does.
func (n *node) stop() {
	n.t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	if err := <-n.ended; err != nil {
		n.t.Errorf("noded ended with %v", err)
	}
	n.cmd = nil
}

// until waits for a condition; the bound is for broken code, not for slow machines.
func (n *node) until(what string, cond func() bool) {
	n.t.Helper()
	late := time.NewTimer(3 * time.Minute)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case err := <-n.ended:
			n.ended <- err
			n.t.Fatalf("noded ended (%v) while the test waited for %s", err, what)
		case <-late.C:
			n.t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// mode is the service mode that noded says is in force, "" until its Service is programmed.
func (n *node) mode() string {
	sock := fmt.Sprintf("/proc/%d/root%s", n.cmd.Process.Pid, statusSocket)
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sock)
	}}}
	r, err := c.Get("http://noded/")
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	var s nodeStatus
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.Services != 1 || s.ServicesBad > 0 {
		return ""
	}
	return s.ProxyMode
}

// reload sends what ExecReload sends, and waits until noded has said all of words since.
func (n *node) reload(words ...string) {
	n.t.Helper()
	mark := len(n.log.since(0))
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		n.t.Fatal(err)
	}
	n.until(fmt.Sprintf("noded to say %q", words), func() bool {
		said := n.log.since(mark)
		for _, w := range words {
			if !strings.Contains(said, w) {
				return false
			}
		}
		return true
	})
}

// serves says that mode is in force, that the Service answers where it should, and that nothing of the other mode is
// in the kernel.
func (n *node) serves(mode string) {
	n.t.Helper()
	n.until("mode "+mode+" to be in force", func() bool { return n.mode() == mode })
	n.until("traces of mode "+mode, func() bool { return len(nettest.Traces(n.t, mode)) > 0 })
	for _, a := range []struct {
		from *nettest.Host
		to   string
	}{{n.A, clusterIP + ":80"}, {n.Node, clusterIP + ":80"}, {n.Client, clusterIP + ":80"}, {n.Client, nettest.NodeIP + ":" + nodePort}} {
		if got := a.from.Ask("tcp", a.to); got.Fail != "" || got.Who != n.B.Name && got.Who != n.Far.Name {
			n.t.Errorf("mode %s: %s asking %s: %q answered, failure %q", mode, a.from.Name, a.to, got.Who, got.Fail)
		}
	}
	for _, other := range []string{modes.IPTables, modes.IPVS} {
		if left := nettest.Traces(n.t, other); other != mode && len(left) > 0 {
			n.t.Errorf("in mode %s there is of mode %s: %v", mode, other, left)
		}
	}
}

// refuses says that noded does not take up proxy, tells why in words, and goes on in mode.
func (n *node) refuses(mode, proxy string, words ...string) {
	n.t.Helper()
	before := nettest.Traces(n.t, mode)
	n.configure(proxy)
	n.reload(append(words, "stays")...)
	n.serves(mode)
	if after := nettest.Traces(n.t, mode); strings.Join(before, "\n") != strings.Join(after, "\n") {
		n.t.Errorf("what is refused changed the kernel from %v to %v", before, after)
	}
}

// drive asks the Service all the time, from a pod and from outside, one connection after the other. What it returns
// ends that; of each client, at most as many connections as given may have failed.
func (n *node) drive() (end func(may int)) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	asked, failed := map[string]int{}, map[string][]string{}
	for from, to := range map[*nettest.Host]string{n.A: clusterIP + ":80", n.Client: nettest.NodeIP + ":" + nodePort} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				a := from.Ask("tcp", to)
				mu.Lock()
				asked[from.Name]++
				if a.Fail != "" {
					failed[from.Name] = append(failed[from.Name], began.UTC().Format("15:04:05.000 ")+a.Fail)
				}
				mu.Unlock()
			}
		})
	}
	stopped := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	n.t.Cleanup(stopped) // before the stage goes
	return func(may int) {
		n.t.Helper()
		stopped()
		for _, from := range []*nettest.Host{n.A, n.Client} {
			if asked[from.Name] == 0 || len(failed[from.Name]) > may {
				n.t.Errorf("meanwhile %s asked %d times and failed with %v; %d may fail", from.Name, asked[from.Name], failed[from.Name], may)
			}
		}
		n.t.Logf("meanwhile asked: %v, failed: %v", asked, failed)
	}
}

// A reload moves Services to the mode that the file says, there and back, while they answer; a file or a mode that
// cannot be had leaves everything as it was and is named in the journal. On a kernel without IPVS mode ipvs is one
// that cannot be had; in test/guest's kernel it can.
func TestReloadSwitchesTheServiceModeAndLeavesNothingOfTheOld(t *testing.T) {
	n := newNode(t)
	n.configure("{mode: iptables}")
	n.start()
	n.serves(modes.IPTables)
	end := n.drive()
	n.refuses(modes.IPTables, "{mode: ipvs", "configuration not reloaded", "noded.yaml")
	n.refuses(modes.IPTables, "{mode: nftables}", "configuration not reloaded", "proxy.mode", "nftables")
	if !ipvs.Present() {
		if os.Getenv("TRIPOD_GUEST") != "" {
			t.Fatal("the guest's kernel has no IPVS")
		}
		n.refuses(modes.IPTables, "{mode: ipvs}", "service mode not changed", "load module ip_vs", "mode=ipvs")
		n.configure("{mode: iptables, masqueradeAll: true}")
		n.reload(`msg="configuration reloaded"`)
		n.serves(modes.IPTables)
		end(0)
		return
	}
	const times = 2
	for range times {
		n.configure("{mode: ipvs}")
		n.reload(`msg="configuration reloaded" proxyMode=ipvs`)
		n.serves(modes.IPVS)
		n.refuses(modes.IPVS, "{mode: iptables", "configuration not reloaded", "noded.yaml")
		n.configure("{mode: iptables}")
		n.reload(`msg="configuration reloaded" proxyMode=iptables`)
		n.serves(modes.IPTables)
	}
	// With its virtual server goes the connection that was being balanced at that moment, one of each client; whatever
	// comes after it finds the rules of the new mode.
	end(times)

	// The file may also change while noded is down.
	n.stop()
	n.configure("{mode: ipvs}")
	n.start()
	n.until("mode ipvs after a restart", func() bool { return n.mode() == modes.IPVS })
	n.until("the rules of before to go", func() bool { return len(nettest.Traces(t, modes.IPTables)) == 0 })
	n.serves(modes.IPVS)

	// Other settings of the mode are taken up too. Not under traffic: the kernel has no scheduler for a moment, and
	// refuses who comes in it.
	n.configure("{mode: ipvs, scheduler: lc}")
	n.reload(`msg="configuration reloaded" proxyMode=ipvs`)
	n.serves(modes.IPVS)
}
