package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestPoolBounds(t *testing.T) {
	for _, c := range []struct {
		network string
		bits    int
		ok      bool
	}{
		{"10.244.0.0/16", 24, true}, {"10.244.0.0/24", 24, true}, {"10.244.0.0/25", 24, false},
		{"10.0.0.0/8", 25, false}, {"fd00::/48", 64, true}, {"fd00::/40", 64, false}, {"10.244.0.0/16", 33, false},
	} {
		if _, err := newPool(netip.MustParsePrefix(c.network), c.bits); (err == nil) != c.ok {
			t.Errorf("%s in /%d: %v", c.network, c.bits, err)
		}
	}
	if _, err := newPool(netip.Prefix{}, 24); err == nil {
		t.Error("an unset network was accepted")
	}
}

func TestPoolNeverGivesABlockTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		network := netip.MustParsePrefix("10.244.0.0/20")
		if rapid.Bool().Draw(t, "v6") {
			network = netip.MustParsePrefix("fd00:0:0:10::/60")
		}
		bits := network.Bits() + 4
		p, err := newPool(network, bits)
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]netip.Prefix{}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			node := fmt.Sprint("n", rapid.IntRange(0, 19).Draw(t, "node"))
			if rapid.Bool().Draw(t, "leave") {
				p.release(node)
				delete(have, node)
				continue
			}
			b, err := p.take(node)
			if errors.Is(err, errFull) {
				if len(have) < 16 {
					t.Fatalf("full with %d of 16 given", len(have))
				}
				continue
			}
			if old, ok := have[node]; ok && old != b {
				t.Fatalf("%s had %s and got %s", node, old, b)
			}
			for other, o := range have {
				if other != node && o.Overlaps(b) {
					t.Fatalf("%s for %s overlaps %s of %s", b, node, o, other)
				}
			}
			if !network.Overlaps(b) || b.Bits() != bits {
				t.Fatalf("block %s is not of %s", b, network)
			}
			have[node] = b
			if err := p.occupy(node, b); err != nil {
				t.Fatalf("its own block: %v", err)
			}
			if err := p.occupy("stranger", b); err == nil {
				t.Fatalf("%s may be occupied twice", b)
			}
		}
	})
}

func TestAssignedBlocksSurviveARestart(t *testing.T) {
	node := func(name, cidr string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if cidr != "" {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
		}
		return n
	}
	c := runtimetest.New(t, node("a", "10.244.0.0/24"), node("b", "10.244.2.0/24"), node("c", ""), node("d", ""), node("e", ""))
	c.Run(t, map[string]runtime.Builder{"nodeipam": func(q runtime.Queue) (runtime.Controller, error) {
		return New(c.Deps(), q, netip.MustParsePrefix("10.244.0.0/22"), 24)
	}})
	runtimetest.Eventually(t, func() string {
		l, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		got := map[string]string{}
		blocks := map[string]bool{}
		for _, n := range l.Items {
			if n.Spec.PodCIDR != "" {
				got[n.Name] = n.Spec.PodCIDR
				blocks[n.Spec.PodCIDR] = true
			}
		}
		// Four blocks for five nodes: one goes without, none is given twice.
		if len(got) != 4 || len(blocks) != 4 || got["a"] != "10.244.0.0/24" || got["b"] != "10.244.2.0/24" {
			return fmt.Sprint(got)
		}
		return ""
	})
	runtimetest.Eventually(t, func() string {
		for _, e := range c.Events.All() {
			if len(e) > 16 && e[:16] == "CIDRNotAvailable" {
				return ""
			}
		}
		return "no event tells that the network is full"
	})
}
