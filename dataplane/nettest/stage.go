package nettest

import (
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The stage's addresses.
const (
	NodeIP      = "172.30.0.1"
	RemoteIP    = "172.30.0.2"
	ClientIP    = "172.30.0.9"
	NodeIP6     = "fd00:30::1"
	Gateway     = "10.244.1.1" // the node's address on the pod bridge
	ClusterCIDR = "10.244.0.0/16"
	ClusterCID6 = "fd00:244::/32"
	ServiceCIDR = "10.96.0.0/16"
)

// Host is a process of the stage in its namespace.
type Host struct {
	Name, IP, IP6 string
	pid           int
	rpc           *rpc.Client
	t             testing.TB
}

// Stage is a node (the test's own namespace) with three pods on a bridge, a second node with one pod, and a client
// outside, the three machines on one segment:
//
//	a 10.244.1.2, b .3, c .4 -- bridge -- node 172.30.0.1 -- switch -- remote 172.30.0.2 (pod far 10.244.2.2)
//	                                                            \---- client 172.30.0.9
//
// The client routes the service range and 192.0.2.0/24 to the node.
type Stage struct {
	Node, A, B, C, Far, Client *Host
	Pods                       []*Host // A, B, C and Far
}

// NewStage builds a Stage in the namespace that Main made. It fails the test where it cannot.
func NewStage(t testing.TB) *Stage {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("build the stage: %v", err)
		}
	}
	s := &Stage{}
	must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	must(os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))

	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}
	must(netlink.LinkAdd(br))
	t.Cleanup(func() { _ = netlink.LinkDel(br) })
	// A redirect for a service address would use up the allowance of ICMP errors that refusals need.
	must(os.WriteFile("/proc/sys/net/ipv4/conf/cni0/send_redirects", []byte("0"), 0o644))
	must(os.WriteFile("/proc/sys/net/ipv4/conf/all/send_redirects", []byte("0"), 0o644))
	must(configure(Setup{Link: "cni0", Addrs: []string{Gateway + "/24", "fd00:244:1::1/64"}, Routes: map[string]string{ServiceCIDR: "", "fd00:96::/112": ""}}))
	pod := func(name string, n int) *Host {
		h := spawn(t, name, true)
		h.IP, h.IP6 = fmt.Sprintf("10.244.1.%d", n), fmt.Sprintf("fd00:244:1::%d", n)
		outer := "veth-" + name
		must(h.plug(outer, "eth0"))
		l, err := netlink.LinkByName(outer)
		must(err)
		must(netlink.LinkSetMaster(l, br))
		must(netlink.LinkSetHairpin(l, true))
		must(netlink.LinkSetUp(l))
		h.configure(Setup{Link: "eth0", Addrs: []string{h.IP + "/24", h.IP6 + "/64"},
			Routes: map[string]string{"0.0.0.0/0": Gateway, "::/0": "fd00:244:1::1"}})
		return h
	}
	s.A, s.B, s.C = pod("a", 2), pod("b", 3), pod("c", 4)

	wire := spawn(t, "switch", true)
	must(wire.plug("eth0", "p-node"))
	s.Far, s.Client = spawn(t, "far", true), spawn(t, "client", true)
	for h, port := range map[*Host]string{s.Far: "p-far", s.Client: "p-client"} {
		// A cable between two other namespaces: made here, then both ends move.
		must(h.plug(port, "eth0"))
		l, err := netlink.LinkByName(port)
		must(err)
		must(netlink.LinkSetNsPid(l, wire.pid))
	}
	wire.configure(Setup{Link: "sw0", Bridge: true})
	must(configure(Setup{Link: "eth0", Addrs: []string{NodeIP + "/24", NodeIP6 + "/64"},
		Routes: map[string]string{"10.244.2.0/24": RemoteIP}}))
	s.Far.IP = "10.244.2.2"
	s.Far.configure(Setup{Link: "eth0", Addrs: []string{RemoteIP + "/24"}, Lo: []string{"10.244.2.2/32"},
		Routes: map[string]string{"10.244.1.0/24": NodeIP}})
	s.Client.IP = ClientIP
	s.Client.configure(Setup{Link: "eth0", Addrs: []string{ClientIP + "/24", "fd00:30::9/64"},
		Routes: map[string]string{ServiceCIDR: NodeIP, "192.0.2.0/24": NodeIP}})
	s.Node = spawn(t, "node", false)
	s.Node.IP = NodeIP
	s.Pods = []*Host{s.A, s.B, s.C, s.Far}
	return s
}

// spawn starts an agent, in a network namespace of its own or in the test's.
func spawn(t testing.TB, name string, isolated bool) *Host {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("start agent %s: %v", name, err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "agent "+name), os.NewFile(uintptr(fds[1]), "test")
	defer theirs.Close()
	defer ours.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=agent")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if isolated {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start agent %s: %v", name, err)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatalf("start agent %s: %v", name, err)
	}
	h := &Host{Name: name, pid: cmd.Process.Pid, rpc: rpc.NewClient(conn), t: t}
	t.Cleanup(func() {
		_ = h.rpc.Close() // the agent ends when its socket does
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return h
}

// plug makes a cable from the test's namespace to the host's.
func (h *Host) plug(here, there string) error {
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: here}, PeerName: there, PeerNamespace: netlink.NsPid(h.pid)})
	if err != nil {
		return fmt.Errorf("cable to %s: %w", h.Name, err)
	}
	l, err := netlink.LinkByName(here)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	h.t.Cleanup(func() { // a dying namespace takes its end of the cable along, but not at once
		if l, err := netlink.LinkByName(here); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	return err
}

func (h *Host) call(method string, args, reply any) {
	h.t.Helper()
	if err := h.rpc.Call("Agent."+method, args, reply); err != nil {
		h.t.Fatalf("%s: %s(%+v): %v", h.Name, method, args, err)
	}
}

func (h *Host) configure(s Setup) {
	h.t.Helper()
	var done bool
	h.call("Configure", s, &done)
}

// Serve makes the host answer on a port of its addresses, by its name.
func (h *Host) Serve(proto string, port int) {
	h.t.Helper()
	for _, ip := range []string{h.IP, h.IP6} {
		if ip != "" {
			var done bool
			h.call("Serve", Listen{Proto: proto, IP: ip, Port: port, Name: h.Name}, &done)
		}
	}
}

// Ask makes one connection (or sends one datagram from a fresh port) and returns what came of it.
func (h *Host) Ask(proto, to string) Answer {
	h.t.Helper()
	return h.AskTimes(proto, to, 1)[0]
}

// AskTimes is Ask, n times one after the other.
func (h *Host) AskTimes(proto, to string, n int) []Answer {
	h.t.Helper()
	var out []Answer
	h.call("Ask", Dial{Proto: proto, To: to, Times: n}, &out)
	return out
}

// Talk is a connection that stays open.
type Talk struct {
	h  *Host
	id int
}

// Open makes a connection that stays open, or a datagram socket that keeps its port.
func (h *Host) Open(proto, to string) *Talk {
	h.t.Helper()
	t := &Talk{h: h}
	h.call("Open", Dial{Proto: proto, To: to}, &t.id)
	return t
}

// Say exchanges one line or datagram.
func (t *Talk) Say() Answer {
	t.h.t.Helper()
	var a Answer
	t.h.call("Say", t.id, &a)
	return a
}
