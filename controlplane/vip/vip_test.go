package vip

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// wire makes two network namespaces with a veth between them, and runs f in the
// first; neighbours sees the second.
func wire(t *testing.T, f func(self, other netns.NsHandle)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	origin, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Set(origin)
	other, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	self, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b", PeerNamespace: netlink.NsFd(int(other))}))
	up := func(name, addr, addr6 string) {
		l, err := netlink.LinkByName(name)
		check(err)
		for _, s := range []string{addr, addr6} {
			a, err := netlink.ParseAddr(s)
			check(err)
			a.Flags = unix.IFA_F_NODAD
			check(netlink.AddrAdd(l, a))
		}
		check(netlink.LinkSetUp(l))
	}
	up("a", "192.0.2.1/24", "2001:db8::1/64")
	check(netns.Set(other))
	up("b", "192.0.2.2/24", "2001:db8::2/64")
	check(netns.Set(self))
	f(self, other)
}

func has(t *testing.T, h *netlink.Handle, link, addr string) bool {
	t.Helper()
	l, err := h.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	as, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if a.IP.Equal(net.ParseIP(addr)) {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestHoldMovesTheNeighbourEntry: while held, the address is there and the
// neighbour that knew another owner learns the new one; afterwards it is gone.
func TestHoldMovesTheNeighbourEntry(t *testing.T) {
	for _, addr := range []string{"192.0.2.10", "2001:db8::10"} {
		t.Run(addr, func(t *testing.T) {
			wire(t, func(self, other netns.NsHandle) {
				here, err := netlink.NewHandleAt(self)
				if err != nil {
					t.Fatal(err)
				}
				there, err := netlink.NewHandleAt(other)
				if err != nil {
					t.Fatal(err)
				}
				b, err := there.LinkByName("b")
				if err != nil {
					t.Fatal(err)
				}
				old := net.HardwareAddr{2, 0, 0, 0, 0, 9}
				if err := there.NeighSet(&netlink.Neigh{LinkIndex: b.Attrs().Index, State: netlink.NUD_STALE, IP: net.ParseIP(addr), HardwareAddr: old}); err != nil {
					t.Fatal(err)
				}
				a, err := here.LinkByName("a")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				ready := make(chan struct{})
				go func() {
					runtime.LockOSThread()
					if err := netns.Set(self); err != nil {
						done <- err
						return
					}
					close(ready)
					done <- New(netip.MustParseAddr(addr), slog.New(slog.NewTextHandler(io.Discard, nil))).Hold(ctx)
				}()
				<-ready
				eventually(t, "the address is held", func() bool { return has(t, here, "a", addr) })
				eventually(t, "the neighbour knows the new holder", func() bool {
					ns, err := there.NeighList(b.Attrs().Index, netlink.FAMILY_ALL)
					if err != nil {
						t.Fatal(err)
					}
					for _, n := range ns {
						if n.IP.Equal(net.ParseIP(addr)) && n.HardwareAddr.String() == a.Attrs().HardwareAddr.String() {
							return true
						}
					}
					return false
				})
				cancel()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if has(t, here, "a", addr) {
					t.Fatal("the address is still held after Hold returned")
				}
			})
		})
	}
}

// TestAHolderThatHangsLosesTheAddress: nobody renews, the kernel removes it.
func TestAHolderThatHangsLosesTheAddress(t *testing.T) {
	wire(t, func(self, other netns.NsHandle) {
		h := New(netip.MustParseAddr("192.0.2.10"), slog.New(slog.NewTextHandler(io.Discard, nil)))
		link, err := Interface(h.addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.renew(link); err != nil {
			t.Fatal(err)
		}
		here, err := netlink.NewHandleAt(self)
		if err != nil {
			t.Fatal(err)
		}
		if !has(t, here, "a", "192.0.2.10") {
			t.Fatal("not added")
		}
		eventually(t, "the kernel dropped it", func() bool { return !has(t, here, "a", "192.0.2.10") })
	})
}

func TestInterfaceNamesWhatTheHostHas(t *testing.T) {
	wire(t, func(self, other netns.NsHandle) {
		if _, err := Interface(netip.MustParseAddr("198.51.100.1")); err == nil {
			t.Fatal("found an interface")
		}
		l, err := Interface(netip.MustParseAddr("192.0.2.77"))
		if err != nil || l.Attrs().Name != "a" {
			t.Fatalf("%v %v", l, err)
		}
	})
}
