package ipvs

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func testSets(t *testing.T, f dataplane.Family) *sets {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	s, err := newSets(f, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.destroy(context.Background()); err != nil {
			t.Error(err)
		}
		s.close()
	})
	return s
}

func elements(a, b string, port uint16) []entry {
	x, y := netip.MustParseAddr(a), netip.MustParseAddr(b)
	k := key(x, port, dataplane.UDP)
	loop := in(setLoop, k)
	loop.other = netip.PrefixFrom(x, x.BitLen())
	src := in(setSources, k)
	src.other, _ = y.Prefix(y.BitLen() / 2)
	return []entry{in(setActive, k), {set: setAddrs, addr: x}, loop, src}
}

// The kernel's sets hold exactly what is counted, whatever was done to them before.
func TestSetsAreRepaired(t *testing.T) {
	for f, addrs := range map[dataplane.Family][2]string{dataplane.IPv4: {"10.96.0.1", "198.51.100.0"}, dataplane.IPv6: {"fd00::1", "2001:db8::"}} {
		t.Run(f.String(), func(t *testing.T) {
			s := testSets(t, f)
			changed, err := s.ensure()
			if err != nil {
				t.Fatal(err)
			}
			if !changed || len(s.names) != len(setTypes) {
				t.Fatalf("fresh sets: changed %v, %d numbers", changed, len(s.names))
			}
			if changed, err := s.ensure(); err != nil || changed {
				t.Fatalf("sets that are there: changed %v, %v", changed, err)
			}
			mine, foreign := elements(addrs[0], addrs[1], 53), elements(addrs[0], addrs[1], 54)
			if err := s.hold(mine); err != nil {
				t.Fatal(err)
			}
			if err := s.hold(mine); err != nil { // a second owner
				t.Fatal(err)
			}
			for _, e := range foreign {
				if e.set != setAddrs {
					if err := s.put(e, true); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := s.put(mine[0], false); err != nil {
				t.Fatal(err)
			}
			check := func(what string, present bool) {
				t.Helper()
				for _, e := range mine {
					got, err := s.list(e.set)
					if err != nil {
						t.Fatal(err)
					}
					want := map[entry]bool{}
					if present {
						want[e] = true
					}
					if !maps.Equal(got, want) {
						t.Errorf("%s: set %s holds %v, want %v", what, e.set, got, want)
					}
				}
			}
			for n := range setTypes {
				if err := s.sync(n); err != nil {
					t.Fatal(err)
				}
			}
			check("after sync", true)
			if err := s.drop(mine); err != nil {
				t.Fatal(err)
			}
			check("while one owner is left", true)
			if err := s.drop(mine); err != nil {
				t.Fatal(err)
			}
			check("without owner", false)
		})
	}
}
