package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

const insideEnv = "TRIPOD_NETWORK_TEST"

// TestMain runs the tests in a network namespace of their own, which ends with
// them: nothing here touches the machine's network.
func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces: run them as root")
		os.Exit(1)
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), insideEnv+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// space is a network namespace without a name.
type space struct {
	t  *testing.T
	fd int
}

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{t: t, fd: -1}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	s.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return s
}

// try runs f in the namespace.
func (s *space) try(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(s.fd, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (s *space) do(f func() error) {
	s.t.Helper()
	if err := s.try(f); err != nil {
		s.t.Fatal(err)
	}
}

// connect joins two namespaces by a veth pair; names and addresses of its ends.
func connect(t *testing.T, a *space, aName, aAddr string, b *space, bName, bAddr string) {
	t.Helper()
	a.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = aName
		v := &netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.fd)}
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		return up(aName, aAddr)
	})
	b.do(func() error { return up(bName, bAddr) })
}

func up(name, addr string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if addr != "" {
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

func routeVia(dst, gw string) error {
	d, err := netlink.ParseIPNet(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: d, Gw: net.ParseIP(gw)})
}

// host is a node with one pod on its bridge.
type host struct {
	*space
	name, ip, cidr string
	pod            *space
	podIP          string
	conf, bin      string
	net            *Network
}

// newHost makes a node whose uplink end lies in sw, bridged there as port.
func newHost(t *testing.T, sw *space, i int, nodes cache.SharedIndexInformer, inf informers.SharedInformerFactory, mode VXLANMode) *host {
	t.Helper()
	h := &host{space: newSpace(t), name: fmt.Sprintf("n%d", i), ip: fmt.Sprintf("192.0.2.%d", i), cidr: fmt.Sprintf("10.244.%d.0/24", i), podIP: fmt.Sprintf("10.244.%d.2", i), conf: t.TempDir(), bin: t.TempDir()}
	port := fmt.Sprintf("p%d", i)
	connect(t, sw, port, "", h.space, "eth0", h.ip+"/24")
	sw.do(func() error {
		br, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		p, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(p, br)
	})
	// What the CNI plugins do, by hand.
	h.pod = newSpace(t)
	connect(t, h.space, "veth0", "", h.pod, "eth0", h.podIP+"/24")
	h.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = cniBridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		if err := up(cniBridge, fmt.Sprintf("10.244.%d.1/24", i)); err != nil {
			return err
		}
		br, err := netlink.LinkByName(cniBridge)
		if err != nil {
			return err
		}
		v, err := netlink.LinkByName("veth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(v, br)
	})
	h.pod.do(func() error { return routeVia("0.0.0.0/0", fmt.Sprintf("10.244.%d.1", i)) })
	for _, p := range []string{"bridge", "host-local", "portmap", "loopback"} {
		if err := os.WriteFile(filepath.Join(h.bin, p), []byte("#!/bin/true\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n, err := New(Config{NodeName: h.name, NodeIP: netip.MustParseAddr(h.ip), VXLAN: mode, CNIConfDir: h.conf, CNIBinDirs: []string{h.bin}, Nodes: inf.Core().V1().Nodes()})
	if err != nil {
		t.Fatal(err)
	}
	h.net = n
	return h
}

func (h *host) sync() {
	h.t.Helper()
	h.do(func() error { return h.net.Sync(context.Background()) })
}

func (h *host) node() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.name}, Spec: v1.NodeSpec{PodCIDR: h.cidr, PodCIDRs: []string{h.cidr}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: h.ip}}}}
}

// site is two nodes and an outside host on one segment.
type site struct {
	sw    *space
	out   *space // 192.0.2.100, knows nothing of pods
	hosts []*host
	store cache.Store
}

func newSite(t *testing.T, mode VXLANMode) *site {
	t.Helper()
	s := &site{sw: newSpace(t), out: newSpace(t)}
	s.sw.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		return up("br0", "")
	})
	connect(t, s.sw, "pout", "", s.out, "eth0", "192.0.2.100/24")
	s.sw.do(func() error {
		br, _ := netlink.LinkByName("br0")
		p, err := netlink.LinkByName("pout")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(p, br)
	})
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	nodes := inf.Core().V1().Nodes().Informer()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); inf.Shutdown() })
	inf.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		t.Fatal("no cache")
	}
	s.store = nodes.GetStore()
	for i := 1; i <= 2; i++ {
		h := newHost(t, s.sw, i, nodes, inf, mode)
		s.hosts = append(s.hosts, h)
		if err := s.store.Add(h.node()); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range s.hosts {
		h.sync()
	}
	return s
}

// serve answers every connection with the address it came from.
func (s *space) serve(addr string) {
	s.t.Helper()
	s.do(func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
				c.Close()
			}
		}()
		return nil
	})
}

// ask connects to addr and returns which source the other side saw.
func (s *space) ask(addr string) (src string, err error) {
	err = s.try(func() error {
		// Resolved here already: a dial of a literal stays on this thread.
		d := net.Dialer{Timeout: 30 * time.Second, FallbackDelay: -1}
		c, err := d.Dial("tcp4", addr)
		if err != nil {
			return err
		}
		defer c.Close()
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		src = strings.TrimSpace(line)
		return nil
	})
	return src, err
}

func (s *space) expect(addr, src string) {
	s.t.Helper()
	got, err := s.ask(addr)
	if err != nil || got != src {
		s.t.Errorf("asked %s: seen as %q, %v; want %q", addr, got, err, src)
	}
}

// iptables runs the real one in the namespace.
func (s *space) iptables(args ...string) {
	s.t.Helper()
	s.do(func() error {
		if b, err := exec.Command("iptables", append([]string{"-w"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables %v: %w: %s", args, err, b)
		}
		return nil
	})
}

func TestPodsReachEachOther(t *testing.T) {
	for _, mode := range []VXLANMode{VXLANAuto, VXLANAlways} {
		t.Run(string(mode), func(t *testing.T) {
			s := newSite(t, mode)
			a, b := s.hosts[0], s.hosts[1]
			b.pod.serve(":8080")
			b.serve(":8081")
			s.out.serve(":8082")
			a.pod.expect("10.244.2.2:8080", "10.244.1.2") // pods see each other's own addresses
			if mode == VXLANAuto {
				a.expect("10.244.2.2:8080", "192.0.2.1")
				a.pod.expect("192.0.2.2:8081", "10.244.1.2") // a node on the segment knows the way back
			} else {
				a.expect("10.244.2.2:8080", "10.244.1.0") // the host's address on the tunnel
				a.pod.expect("192.0.2.2:8081", "192.0.2.1")
			}
			a.pod.expect("192.0.2.100:8082", "192.0.2.1") // outside sees the node
			a.do(func() error {
				rs, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
				if len(rs) != 0 {
					return fmt.Errorf("there is a default route: the test shows nothing: %v", rs)
				}
				return err
			})
		})
	}
}

func TestADropPolicyInForwardDoesNotStopPods(t *testing.T) {
	s := newSite(t, VXLANAuto)
	for _, h := range s.hosts {
		h.iptables("-P", "FORWARD", "DROP")
		h.sync()
	}
	s.hosts[1].pod.serve(":8080")
	s.hosts[0].pod.expect("10.244.2.2:8080", "10.244.1.2")
	// What an operator refuses stays refused: our rules come last.
	s.hosts[0].iptables("-I", "FORWARD", "-p", "tcp", "--dport", "8080", "-j", "REJECT")
	if src, err := s.hosts[0].pod.ask("10.244.2.2:8080"); err == nil {
		t.Errorf("a refused connection was made, seen as %s", src)
	}
}

func TestAServiceAddressIsReachedFromTheHostWithoutADefaultRoute(t *testing.T) {
	s := newSite(t, VXLANAuto)
	a, b := s.hosts[0], s.hosts[1]
	a.pod.serve(":8080")
	b.pod.serve(":8080")
	// What the dataplane writes.
	a.iptables("-t", "nat", "-A", "OUTPUT", "-d", "10.96.0.7", "-p", "tcp", "--dport", "80", "-j", "DNAT", "--to", "10.244.2.2:8080")
	a.iptables("-t", "nat", "-A", "OUTPUT", "-d", "10.96.0.8", "-p", "tcp", "--dport", "80", "-j", "DNAT", "--to", "10.244.1.2:8080")
	a.expect("10.96.0.7:80", "192.0.2.1")
	a.expect("10.96.0.8:80", "192.0.2.1")
	if _, err := a.ask("10.96.0.9:80"); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("an address without a Service: %v", err)
	}
}

// routes lists our routes on the host as text.
func (h *host) routes() string {
	var out []string
	h.do(func() error {
		rs, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range rs {
			out = append(out, fmt.Sprintf("%s via %s", r.Dst, r.Gw))
		}
		return err
	})
	return strings.Join(out, "; ")
}

func TestWhatIsBrokenIsRepairedAndWhatIsGoneIsRemoved(t *testing.T) {
	s := newSite(t, VXLANAuto)
	a, b := s.hosts[0], s.hosts[1]
	b.pod.serve(":8080")
	before := a.routes()
	a.do(func() error {
		d, _ := netlink.ParseIPNet("10.244.2.0/24")
		l, err := netlink.LinkByName(serviceBridge)
		if err != nil {
			return err
		}
		return errors.Join(netlink.RouteDel(&netlink.Route{Dst: d}), netlink.LinkDel(l))
	})
	a.iptables("-F", forwardChain)
	a.do(func() error { return (&firewall{}).remove() })
	a.do(func() error { return routeVia("10.55.0.0/16", "192.0.2.2") }) // an operator's
	a.sync()
	if got := a.routes(); got != before {
		t.Errorf("repaired to %q, was %q", got, before)
	}
	a.pod.expect("10.244.2.2:8080", "10.244.1.2")

	// A node that moved, one that left, one that is new.
	moved := b.node()
	moved.Status.Addresses[0].Address = "192.0.2.77"
	if err := s.store.Update(moved); err != nil {
		t.Fatal(err)
	}
	a.sync()
	if got := a.routes(); !strings.Contains(got, "10.244.2.0/24 via 192.0.2.77") || strings.Contains(got, "via 192.0.2.2;") {
		t.Errorf("moved: %s", got)
	}
	far := b.node()
	far.Name, far.Spec.PodCIDR, far.Spec.PodCIDRs = "far", "10.244.9.0/24", nil
	far.Status.Addresses[0].Address = "203.0.113.9"
	if err := errors.Join(s.store.Delete(moved), s.store.Add(far)); err != nil {
		t.Fatal(err)
	}
	a.sync()
	if got := a.routes(); strings.Contains(got, "10.244.2.0/24") || !strings.Contains(got, "10.244.9.0/24 via 10.244.9.0") {
		t.Errorf("left and new: %s", got)
	}
	if err := s.store.Delete(far); err != nil {
		t.Fatal(err)
	}
	a.sync()
	a.do(func() error {
		if _, err := netlink.LinkByName(tunnelName); !errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("a tunnel to nobody is left: %v", err)
		}
		d, _ := netlink.ParseIPNet("10.55.0.0/16")
		rs, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: d}, netlink.RT_FILTER_DST)
		if len(rs) != 1 {
			return fmt.Errorf("the operator's route: %v", rs)
		}
		return err
	})
}

func TestAnUnchangedTurnWritesNothing(t *testing.T) {
	s := newSite(t, VXLANAlways)
	a := s.hosts[0]
	a.do(func() error {
		ch, done := make(chan netlink.RouteUpdate, 16), make(chan struct{})
		if err := netlink.RouteSubscribe(ch, done); err != nil {
			return err
		}
		defer close(done)
		if err := a.net.Sync(context.Background()); err != nil {
			return err
		}
		// A change of our own marks the end of what the turn may have sent.
		if err := routeVia("10.99.0.0/16", "192.0.2.2"); err != nil {
			return err
		}
		for u := range ch {
			if u.Dst.String() == "10.99.0.0/16" {
				return nil
			}
			if u.Protocol == RouteProtocol { // IPv6 routes of fresh links may come at any time
				return fmt.Errorf("a turn without change wrote a route: %v", u)
			}
		}
		return errors.New("no word from netlink")
	})
}

func TestAnOperatorsNetworkWins(t *testing.T) {
	s := newSite(t, VXLANAlways)
	a := s.hosts[0]
	if _, err := os.Stat(filepath.Join(a.conf, cniFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(a.conf, "05-other.conflist"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.sync()
	if got := a.routes(); got != "10.96.0.0/16 via <nil>" {
		t.Errorf("routes left: %s", got)
	}
	if _, err := os.Stat(filepath.Join(a.conf, cniFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("our CNI configuration is left: %v", err)
	}
	if err := os.Remove(filepath.Join(a.conf, "05-other.conflist")); err != nil {
		t.Fatal(err)
	}
	a.sync()
	s.hosts[1].pod.serve(":8080")
	a.pod.expect("10.244.2.2:8080", "10.244.1.2")
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	s := newSite(t, VXLANAuto)
	a := s.hosts[0]
	said := func(want string) {
		t.Helper()
		if err := a.try(func() error { return a.net.Sync(context.Background()) }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	n := a.node()
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
	if err := s.store.Update(n); err != nil {
		t.Fatal(err)
	}
	said("no pod CIDR yet")
	if err := s.store.Update(a.node()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(a.bin, "portmap")); err != nil {
		t.Fatal(err)
	}
	said("apt install containernetworking-plugins")
	a.net.cfg.NodeIP = netip.MustParseAddr("192.0.2.99")
	said("no interface of this host has the node's address 192.0.2.99")
}

func TestARestartWithoutTheAPIKeepsTheNodeReady(t *testing.T) {
	s := newSite(t, VXLANAuto)
	a := s.hosts[0]
	unsynced := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	make := func(conf string) *Network {
		n, err := New(Config{NodeName: a.name, NodeIP: netip.MustParseAddr(a.ip), CNIConfDir: conf, CNIBinDirs: []string{a.bin}, Nodes: unsynced.Core().V1().Nodes()})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	again := make(a.conf)
	if err := again.Ready(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	before := a.routes()
	a.do(func() error { return again.Sync(context.Background()) })
	if got := a.routes(); got != before {
		t.Errorf("routes %q, were %q", got, before)
	}
	first := make(t.TempDir())
	if err := first.Ready(); err == nil {
		t.Error("a host that never had a network is ready")
	}
	if err := a.try(func() error { return first.Sync(context.Background()) }); err == nil || !strings.Contains(err.Error(), "list of nodes") {
		t.Errorf("got %v", err)
	}
}

func TestResetLeavesNothing(t *testing.T) {
	s := newSite(t, VXLANAlways)
	a := s.hosts[0]
	a.do(func() error { return Reset(a.conf) })
	a.do(func() error { return Reset(a.conf) }) // of nothing
	if got := a.routes(); got != "" {
		t.Errorf("routes left: %s", got)
	}
	a.do(func() error {
		for _, name := range []string{tunnelName, serviceBridge, cniBridge} {
			if _, err := netlink.LinkByName(name); !errors.As(err, &netlink.LinkNotFoundError{}) {
				return fmt.Errorf("%s is left: %v", name, err)
			}
		}
		b, err := exec.Command("iptables-save").CombinedOutput()
		if strings.Contains(strings.ToLower(string(b)), "tripod") {
			return fmt.Errorf("rules are left:\n%s", b)
		}
		return err
	})
}
