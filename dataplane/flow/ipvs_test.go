package flow

import (
	"os"
	"slices"
	"testing"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/dataplane/nettest"
)

// destinations lists the destinations of one virtual server with their weights.
func destinations(t *testing.T, s *dataplane.Service) map[string]int {
	t.Helper()
	h, err := ipvs.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	dests, err := h.GetDestinations(&ipvs.Service{Address: s.ClusterIP.AsSlice(), Port: s.ServicePort, Protocol: uint16(s.Protocol),
		AddressFamily: unix.AF_INET, Netmask: 0xffffffff, SchedName: "rr"})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, d := range dests {
		out[d.Address.String()] = d.Weight
	}
	return out
}

// Only IPVS drains: iptables' connections live in connection tracking alone.
func TestDraining(t *testing.T) {
	if !slices.Contains(modesToRun(), modes.IPVS) {
		// Nothing of this machine's kernel to test: "make guest" runs this test for sure.
		if os.Getenv("TRIPOD_GUEST") != "" {
			t.Fatal("the guest runs without mode ipvs")
		}
		return
	}
	w := newWorld(t, modes.IPVS)
	s := w.service(dataplane.TCP, 1, []*nettest.Host{w.B}, nil)
	c := w.A.Open("tcp", cluster(s))
	w.check("before", c.Say(), w.A.IP, w.B)
	w.set(w.with(s, w.C))
	if got := destinations(t, s); len(got) != 2 || got[w.B.IP] != 0 || got[w.C.IP] != 1 {
		t.Errorf("while a connection is open the destinations and weights are %v, want %s at 0 and %s at 1", got, w.B.IP, w.C.IP)
	}
	w.check("while draining", c.Say(), w.A.IP, w.B)
	for range 3 {
		w.expect(w.A, dataplane.TCP, cluster(s), w.A.IP, w.C)
	}
	w.set(w.with(s, w.B, w.C)) // it comes back before it has drained
	if got := destinations(t, s); got[w.B.IP] != 1 {
		t.Errorf("after it came back the weights are %v", got)
	}
	w.check("after it came back", c.Say(), w.A.IP, w.B)

	unused := w.service(dataplane.TCP, 2, []*nettest.Host{w.B, w.C}, nil)
	w.set(w.with(unused, w.C))
	eventually(t, "a destination without connections to go", func() bool { return len(destinations(t, unused)) == 1 })
	w.set(w.with(unused))
	eventually(t, "a virtual server without destinations to go", func() bool {
		return !slices.Contains(nettest.VirtualServers(t), "virtual server "+unused.ClusterIP.String()+":80/6")
	})
	datagrams := w.service(dataplane.UDP, 3, []*nettest.Host{w.B, w.C}, nil)
	w.expect(w.A, dataplane.UDP, cluster(datagrams), "", w.B, w.C)
	w.set(w.with(datagrams, w.C))
	if got := destinations(t, datagrams); len(got) != 1 {
		t.Errorf("UDP destinations drain: %v", got)
	}
}

// A daemon that starts again takes over what an earlier one left: open connections stay.
func TestRestartKeepsConnections(t *testing.T) {
	for _, mode := range modesToRun() {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, mode)
			s := w.service(dataplane.TCP, 1, []*nettest.Host{w.B}, func(s *dataplane.Service) { s.NodePort = nodePort })
			inside, outside := w.A.Open("tcp", cluster(s)), w.Client.Open("tcp", at(nettest.NodeIP, nodePort))
			w.check("pod, before", inside.Say(), "", w.B)
			w.check("client, before", outside.Say(), "", w.B)
			again, err := modes.Open(options(mode))
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if err := again.Sync(t.Context(), []*dataplane.Service{s}); err != nil {
				t.Fatal(err)
			}
			w.check("pod, after", inside.Say(), "", w.B)
			w.check("client, after", outside.Say(), "", w.B)
			w.expect(w.A, dataplane.TCP, cluster(s), "", w.B)
		})
	}
}
