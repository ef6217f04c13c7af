package linearizability

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// network carries the bytes between the members. Each member advertises the address of
// its proxy, so that all peer traffic, in both directions of every connection, passes
// here. A direction from one member to another can be cut: bytes are then held, as TCP
// holds what it cannot deliver, and are delivered when the cut is healed, or never, when
// the connections were reset meanwhile. No new connection is made between two members
// while either direction is cut.
type network struct {
	// pid tells the process of a member at this moment, 0 for none.
	pid func(member int) int

	mu     sync.Mutex
	change *sync.Cond
	cut    map[link]bool
	conns  map[net.Conn]link
	closed bool
	lns    []net.Listener
	wg     sync.WaitGroup
}

type link struct{ from, to int }

func newNetwork(pid func(int) int) *network {
	n := &network{pid: pid, cut: map[link]bool{}, conns: map[net.Conn]link{}}
	n.change = sync.NewCond(&n.mu)
	return n
}

// proxy opens the proxy of member, which listens at target, and returns its address.
func (n *network) proxy(member int, target string) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("open the proxy of member %d: %w", member, err)
	}
	n.lns = append(n.lns, ln)
	n.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n.wg.Go(func() { n.serve(c, member, target) })
		}
	})
	return ln.Addr().String(), nil
}

func (n *network) serve(in net.Conn, to int, target string) {
	defer in.Close()
	from, ok := n.dialler(in)
	if !ok {
		return // whoever it was is gone
	}
	there, back := link{from, to}, link{to, from}
	if !n.track(in, there) {
		return
	}
	defer n.forget(in)
	if !n.open(there, back) {
		return
	}
	out, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	defer out.Close()
	if !n.track(out, there) {
		return
	}
	defer n.forget(out)
	done := make(chan struct{}, 2)
	go func() { n.pump(out, in, there); done <- struct{}{} }()
	go func() { n.pump(in, out, back); done <- struct{}{} }()
	<-done
	in.Close()
	out.Close()
	<-done
}

func (n *network) pump(dst, src net.Conn, l link) {
	buf := make([]byte, 64<<10)
	for {
		k, err := src.Read(buf)
		if k > 0 {
			if !n.open(l) {
				return
			}
			if _, err := dst.Write(buf[:k]); err != nil {
				return
			}
		}
		if err != nil {
			// A FIN is held as well: the other side must not learn of an end that could
			// not have reached it.
			n.open(l)
			return
		}
	}
}

// open waits until none of the links is cut; false when the network is closed.
func (n *network) open(ls ...link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		blocked := false
		for _, l := range ls {
			blocked = blocked || n.cut[l]
		}
		if n.closed || !blocked {
			return !n.closed
		}
		n.change.Wait()
	}
}

func (n *network) track(c net.Conn, l link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.conns[c] = l
	}
	return !n.closed
}

func (n *network) forget(c net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// block cuts links; the returned func heals them. With reset, the connections along them,
// in either direction, break when they are healed, and what was held is lost.
func (n *network) block(reset bool, ls ...link) (heal func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var cut []link // by us: overlapping cuts heal with the last
	for _, l := range ls {
		if !n.cut[l] {
			n.cut[l] = true
			cut = append(cut, l)
		}
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, l := range cut {
			delete(n.cut, l)
			for c, at := range n.conns {
				if reset && (at == l || at == link{l.to, l.from}) {
					c.Close()
				}
			}
		}
		n.change.Broadcast()
	}
}

// healAll removes every cut.
func (n *network) healAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = map[link]bool{}
	n.change.Broadcast()
}

func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	for c := range n.conns {
		c.Close()
	}
	n.change.Broadcast()
	n.mu.Unlock()
	for _, ln := range n.lns {
		ln.Close()
	}
	n.wg.Wait()
}

// dialler finds which member made a connection: the socket at its other end belongs to
// the process of one of them.
func (n *network) dialler(c net.Conn) (int, bool) {
	remote, local := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	inode := socketInode(remote.Port, local.Port)
	if inode == "" {
		return 0, false
	}
	want := "socket:[" + inode + "]"
	for m := range members {
		pid := n.pid(m)
		if pid == 0 {
			continue
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == want {
				return m, true
			}
		}
	}
	return 0, false
}

// socketInode is the inode of the loopback socket with these ports, "" for none.
func socketInode(localPort, remotePort int) string {
	const loopback = "0100007F"
	local, remote := fmt.Sprintf("%s:%04X", loopback, localPort), fmt.Sprintf("%s:%04X", loopback, remotePort)
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		// sl local rem st queues tr retrnsmt uid timeout inode
		if w := strings.Fields(s.Text()); len(w) > 9 && w[1] == local && w[2] == remote {
			return w[9]
		}
	}
	return ""
}
