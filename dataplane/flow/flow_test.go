package flow

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/dataplane/nettest"
)

// scenario is one thing that packets are to do. n is the scenario's number, for an address of its own.
type scenario struct {
	name string
	run  func(w *world, n int, proto dataplane.Protocol)
	only dataplane.Protocol // 0: TCP and UDP
}

const nodePort = 30080

func nodePortOf(n int) uint16 { return nodePort + uint16(n) }

var scenarios = []scenario{
	{name: "a pod reaches a cluster address unmasqueraded", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B, w.Far}, nil)
		for range 4 {
			w.expect(w.A, p, cluster(s), w.A.IP, w.B, w.Far)
		}
	}},
	{name: "the node reaches a cluster address", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B, w.Far}, nil)
		for range 4 {
			w.expect(w.Node, p, cluster(s), "", w.B, w.Far)
		}
	}},
	{name: "a client outside that reaches a cluster address is masqueraded", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B}, nil)
		w.expect(w.Client, p, cluster(s), nettest.Gateway, w.B)
		w.set(w.with(s, w.Far))
		w.expect(w.Client, p, cluster(s), nettest.NodeIP, w.Far)
	}},
	{name: "a pod reaches itself through its service", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.A}, nil)
		w.expect(w.A, p, cluster(s), nettest.Gateway, w.A)
	}},
	{name: "node port from outside, from the node and from pods", run: func(w *world, n int, p dataplane.Protocol) {
		port := nodePortOf(n)
		w.service(p, n, []*nettest.Host{w.B}, func(s *dataplane.Service) { s.NodePort = port })
		w.expect(w.Client, p, at(nettest.NodeIP, port), nettest.Gateway, w.B)
		w.expect(w.Node, p, at(nettest.NodeIP, port), "", w.B)
		w.expect(w.Node, p, at(nettest.Gateway, port), "", w.B)
		w.expect(w.A, p, at(nettest.NodeIP, port), "", w.B)
		w.expect(w.A, p, at(nettest.Gateway, port), "", w.B)
		w.expect(w.B, p, at(nettest.NodeIP, port), "", w.B)
	}},
	{name: "node port with only a far endpoint is masqueraded", run: func(w *world, n int, p dataplane.Protocol) {
		port := nodePortOf(n)
		w.service(p, n, []*nettest.Host{w.Far}, func(s *dataplane.Service) { s.NodePort = port })
		w.expect(w.Client, p, at(nettest.NodeIP, port), nettest.NodeIP, w.Far)
	}},
	{name: "external policy Local keeps the client's address and stays on the node", run: func(w *world, n int, p dataplane.Protocol) {
		port := nodePortOf(n)
		s := w.service(p, n, []*nettest.Host{w.B, w.Far}, func(s *dataplane.Service) { s.NodePort, s.ExternalLocal = port, true })
		for range 4 {
			w.expect(w.Client, p, at(nettest.NodeIP, port), nettest.ClientIP, w.B)
		}
		w.set(w.with(s, w.Far)) // none here: a load balancer is to try another node
		w.fails(w.Client, p, at(nettest.NodeIP, port), "timeout")
		w.expect(w.A, p, cluster(s), w.A.IP, w.Far) // the cluster address is not concerned
	}},
	{name: "internal policy Local uses this node's endpoints only", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B, w.Far}, func(s *dataplane.Service) { s.InternalLocal = true })
		for range 6 {
			w.expect(w.A, p, cluster(s), w.A.IP, w.B)
		}
	}},
	{name: "an external address works from outside and from pods", run: func(w *world, n int, p dataplane.Protocol) {
		w.service(p, n, []*nettest.Host{w.B}, func(s *dataplane.Service) {
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.10")}
			s.ServicePort = 1000 + uint16(n)
		})
		w.expect(w.Client, p, at("192.0.2.10", 1000+uint16(n)), nettest.Gateway, w.B)
		w.expect(w.A, p, at("192.0.2.10", 1000+uint16(n)), "", w.B)
	}},
	{name: "a load balancer address admits its source ranges only", run: func(w *world, n int, p dataplane.Protocol) {
		port := 1000 + uint16(n)
		s := w.service(p, n, []*nettest.Host{w.B}, func(s *dataplane.Service) {
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.20")}
			s.ServicePort = port
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix(nettest.ClientIP + "/32")}
		})
		w.expect(w.Client, p, at("192.0.2.20", port), nettest.Gateway, w.B)
		closed := *s
		closed.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		w.set(&closed)
		w.unanswered(w.Client, p, at("192.0.2.20", port))
	}},
	{name: "no endpoints: refused at once", run: func(w *world, n int, p dataplane.Protocol) {
		port := nodePortOf(n)
		s := w.service(p, n, nil, func(s *dataplane.Service) { s.NodePort = port })
		w.fails(w.A, p, cluster(s), "refused")
		w.fails(w.Node, p, cluster(s), "refused")
		w.fails(w.Client, p, cluster(s), "refused")
		w.fails(w.Client, p, at(nettest.NodeIP, port), "refused")
		w.set(w.with(s, w.B))
		w.expect(w.A, p, cluster(s), w.A.IP, w.B)
		w.expect(w.Client, p, at(nettest.NodeIP, port), "", w.B)
	}},
	{name: "new connections follow an endpoint change", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B}, nil)
		for range 3 {
			w.expect(w.A, p, cluster(s), "", w.B)
		}
		w.set(w.with(s, w.C))
		for range 3 {
			w.expect(w.A, p, cluster(s), "", w.C)
		}
	}},
	{name: "terminating endpoints serve when nothing else does", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B, w.C}, func(s *dataplane.Service) {
			s.Endpoints[0].Ready, s.Endpoints[0].Terminating = false, true
		})
		for range 4 {
			w.expect(w.A, p, cluster(s), "", w.C)
		}
		all := *s
		all.Endpoints = w.endpoints(p, w.B)
		all.Endpoints[0].Ready, all.Endpoints[0].Terminating = false, true
		w.set(&all)
		w.expect(w.A, p, cluster(s), "", w.B)
	}},
	{name: "connections spread over the endpoints", only: dataplane.TCP, run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B, w.C, w.Far}, nil)
		const asked = 150
		got := tally(w.A.AskTimes("tcp", cluster(s), asked))
		for _, h := range []*nettest.Host{w.B, w.C, w.Far} {
			// A fair random choice is outside this with a probability below 1e-9.
			if got[h.Name] < asked/3-40 || got[h.Name] > asked/3+40 {
				w.t.Errorf("%d connections went %v, want about %d each", asked, got, asked/3)
				break
			}
		}
	}},
	{name: "client affinity keeps a client with an endpoint", run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B, w.C, w.Far}, func(s *dataplane.Service) { s.AffinityTimeout = time.Hour })
		for _, from := range []*nettest.Host{w.A, w.Client} {
			if got := tally(from.AskTimes(network(p), cluster(s), 20)); len(got) != 1 {
				w.t.Errorf("%s with affinity was sent to %v", from.Name, got)
			}
		}
	}},
	{name: "a long connection survives changes of its service and of others", only: dataplane.TCP, run: func(w *world, n int, p dataplane.Protocol) {
		s := w.service(p, n, []*nettest.Host{w.B}, nil)
		c := w.A.Open("tcp", cluster(s))
		w.check("before", c.Say(), w.A.IP, w.B)
		other := w.service(p, n+1, []*nettest.Host{w.C}, nil)
		w.check("after another service came", c.Say(), w.A.IP, w.B)
		w.set(w.with(s, w.B, w.C))
		w.check("after an endpoint came", c.Say(), w.A.IP, w.B)
		w.set(w.with(s, w.C))
		w.check("after its own endpoint stopped taking new ones", c.Say(), w.A.IP, w.B)
		w.expect(w.A, p, cluster(s), "", w.C)
		w.remove(other)
		w.dp.Resync()
		w.settled()
		w.check("after a verification", c.Say(), w.A.IP, w.B)
	}},
	{name: "a datagram socket moves on when its backend left", only: dataplane.UDP, run: func(w *world, n int, p dataplane.Protocol) {
		port := nodePortOf(n)
		s := w.service(p, n, []*nettest.Host{w.B}, func(s *dataplane.Service) { s.NodePort = port })
		pod, out := w.A.Open("udp", cluster(s)), w.Client.Open("udp", at(nettest.NodeIP, port))
		w.check("pod, before", pod.Say(), "", w.B)
		w.check("client, before", out.Say(), "", w.B)
		w.set(w.with(s, w.C))
		w.check("pod, after", pod.Say(), "", w.C)
		w.check("client, after", out.Say(), "", w.C)
		w.set(w.with(s, w.C, w.B))
		w.check("pod, after another came", pod.Say(), "", w.C)
	}},
	{name: "a datagram socket that began before there were endpoints arrives", only: dataplane.UDP, run: func(w *world, n int, p dataplane.Protocol) {
		to := at("10.96.1."+itoa(n), 80)
		c := w.A.Open("udp", to)
		if a := c.Say(); a.Fail == "" { // no such service yet: the flow is tracked, untranslated
			w.t.Errorf("%s answered for a service that is not there", a.Who)
		}
		w.service(p, n, []*nettest.Host{w.B}, nil)
		w.check("after the service came", c.Say(), "", w.B)
	}},
	{name: "a service that is gone leaves nothing that answers", run: func(w *world, n int, p dataplane.Protocol) {
		port := nodePortOf(n)
		s := w.service(p, n, []*nettest.Host{w.B}, func(s *dataplane.Service) { s.NodePort = port })
		w.expect(w.A, p, cluster(s), "", w.B)
		w.remove(s)
		w.unanswered(w.A, p, cluster(s))
		w.unanswered(w.Client, p, at(nettest.NodeIP, port))
	}},
}

func itoa(n int) string { return netip.AddrFrom4([4]byte{0, 0, 0, byte(n)}).String()[6:] }

func TestFlows(t *testing.T) {
	for _, mode := range modesToRun() {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, mode)
			for i, sc := range scenarios {
				for j, p := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP} {
					if sc.only != 0 && sc.only != p {
						continue
					}
					t.Run(p.String()+"/"+sc.name, func(t *testing.T) {
						w := w.in(t)
						sc.run(w, 1+i*4+j*2, p)
						for _, s := range w.dp.Status() {
							w.dp.Remove(s.ID)
						}
						w.settled()
					})
				}
			}
		})
	}
}

func TestSwitchingModesLeavesNothingOfTheOld(t *testing.T) {
	run := modesToRun()
	path := append(append([]string{}, run...), run[0])
	if len(run) == 1 { // to a second backend of the same mode is no switch: clean up and come back instead
		path = run
	}
	w := newWorld(t, path[0])
	s := w.service(dataplane.TCP, 1, []*nettest.Host{w.B}, func(s *dataplane.Service) { s.NodePort = nodePort })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for i, mode := range path {
		if i > 0 {
			b, err := modes.Open(options(mode))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.dp.SetBackend(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		w.expect(w.A, dataplane.TCP, cluster(s), w.A.IP, w.B)
		w.expect(w.Client, dataplane.TCP, at(nettest.NodeIP, nodePort), "", w.B)
		w.expect(w.Node, dataplane.TCP, cluster(s), "", w.B)
		for _, other := range []string{modes.IPTables, modes.IPVS} {
			if traces := nettest.Traces(t, other); other != mode && len(traces) > 0 {
				t.Errorf("in mode %s there is of mode %s: %v", mode, other, traces)
			} else if other == mode && len(traces) == 0 {
				t.Errorf("found no trace of mode %s while it is in use: the check is blind", mode)
			}
		}
	}
	// Other settings of the same mode are a switch too.
	again := options(w.dp.Mode())
	again.Scheduler = "lc"
	same, err := modes.Open(again)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.dp.SetBackend(ctx, same); err != nil {
		t.Fatal(err)
	}
	w.expect(w.A, dataplane.TCP, cluster(s), w.A.IP, w.B)
	b, err := modes.Open(options(w.dp.Mode()))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Cleanup(ctx); err != nil {
		t.Fatal(err)
	}
	if left := append(nettest.Traces(t, modes.IPTables), nettest.Traces(t, modes.IPVS)...); len(left) > 0 {
		t.Errorf("after clean-up there is still %v", left)
	}
}
