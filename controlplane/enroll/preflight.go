package enroll

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/controlplane/vip"
)

// minFree is the space, in bytes, below which a store is not started: raft-wal
// preallocates segments of 64 MiB, and a snapshot needs room beside the log.
const minFree = 512 << 20

// preflight checks what would make the service fail to start.
func preflight(c peer.Config, running bool) error {
	if os.Geteuid() != 0 {
		return errors.New("this writes certificates and starts a service: run it as root")
	}
	var errs []error
	if err := checkSpace(c.StateDir); err != nil {
		errs = append(errs, err)
	}
	if !running { // our own service holds them
		for _, p := range []struct {
			key  string
			port int
		}{{"apiPort", c.APIPort}, {"etcdPort", c.EtcdPort}, {"peerPort", c.PeerPort}} {
			if err := checkPort(c.ListenAddress, p.port, p.key); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func checkSpace(dir string) error {
	for { // the nearest parent that exists
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFree {
		return fmt.Errorf("the file system of %s has %d MiB free; the store needs at least %d MiB: free some space, then run this again", dir, free>>20, minFree>>20)
	}
	return nil
}

func checkPort(host string, port int, key string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		who := "another program"
		if w := portOwner(port); w != "" {
			who = w
		}
		return fmt.Errorf("port %d is in use by %s: stop it, or set %s in %s, then run this again", port, who, key, peer.DefaultConfigPath)
	}
	return fmt.Errorf("port %d cannot be bound: %w", port, err)
}

// portOwner names the process that listens on a TCP port, from /proc.
func portOwner(port int) string {
	inodes := map[string]bool{}
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(f)
		if err != nil {
			continue
		}
		for s := bufio.NewScanner(file); s.Scan(); {
			w := strings.Fields(s.Text())
			if len(w) < 10 || w[3] != "0A" { // LISTEN, proc_net_tcp(5)
				continue
			}
			_, p, _ := strings.Cut(w[1], ":")
			if n, err := strconv.ParseUint(p, 16, 16); err == nil && int(n) == port {
				inodes["socket:["+w[9]+"]"] = true
			}
		}
		file.Close()
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && inodes[to] {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return ""
}

// chooseAddress decides at which address the others reach this host: the one
// asked for, the one beside the vip, the one towards remote (a host:port, may be
// empty), the source of the default route, or the only one there is.
func chooseAddress(asked, vipAddr, remote string) (netip.Addr, error) {
	if asked != "" {
		a, err := netip.ParseAddr(asked)
		if err != nil {
			return a, fmt.Errorf("advertise address: %w", err)
		}
		return a, hasAddress(a)
	}
	all, err := addresses()
	if err != nil {
		return netip.Addr{}, err
	}
	if vipAddr != "" {
		v, err := netip.ParseAddr(vipAddr)
		if err != nil {
			return v, fmt.Errorf("vip: %w", err)
		}
		if _, err := vip.Interface(v); err != nil {
			return v, err
		}
		for _, p := range all {
			if p.Contains(v) && p.Addr() != v {
				return p.Addr(), nil
			}
		}
	}
	for _, to := range []string{remote, "192.0.2.1:9"} { // the second stands for anywhere: a default route (RFC 5737)
		if to == "" {
			continue
		}
		if c, err := net.Dial("udp", to); err == nil { // sends nothing: asks the routing table
			a := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			c.Close()
			if !a.IsLoopback() {
				return a, nil
			}
		}
	}
	if len(all) == 1 {
		return all[0].Addr(), nil
	}
	return netip.Addr{}, fmt.Errorf("this host has the addresses %v: say with --advertise which one the other hosts reach it by", all)
}

// addresses are the global addresses of the physical side of this host.
func addresses() ([]netip.Prefix, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []netip.Prefix
	for _, l := range links {
		n := l.Attrs().Name
		if l.Attrs().Flags&net.FlagLoopback != 0 || n == "cni0" || n == "docker0" || strings.HasPrefix(n, "tripod") || strings.HasPrefix(n, "veth") || strings.HasPrefix(n, "kube-") {
			continue
		}
		as, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list addresses of %s: %w", n, err)
		}
		for _, a := range as {
			ip, _ := netip.AddrFromSlice(a.IP)
			ip = ip.Unmap()
			if ones, bits := a.Mask.Size(); ones < bits && ip.IsGlobalUnicast() {
				out = append(out, netip.PrefixFrom(ip, ones))
			}
		}
	}
	return out, nil
}

func hasAddress(a netip.Addr) error {
	all, err := addresses()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Addr() == a.Unmap() {
			return nil
		}
	}
	return fmt.Errorf("this host does not have the address %s (it has %v)", a, all)
}
