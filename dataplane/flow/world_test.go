package flow

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/conntrack"
	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/dataplane/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// modesToRun are the modes of this run.
func modesToRun() []string {
	if s := os.Getenv("TRIPOD_FLOW_MODES"); s != "" {
		return strings.Split(s, ",")
	}
	if os.Getenv("TRIPOD_GUEST") != "" {
		return []string{modes.IPTables, modes.IPVS}
	}
	return []string{modes.IPTables}
}

// world is a stage and a running dataplane in its node.
type world struct {
	*nettest.Stage
	t    testing.TB
	mode string
	dp   *dataplane.Dataplane
	n    int // services made
}

// The ports that the stage's pods listen on.
const (
	tcpPort = 8080
	udpPort = 5353
)

func options(mode string) modes.Options {
	return modes.Options{
		Mode: mode, Scheduler: "rr", Logger: logger(),
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix(nettest.ClusterCIDR), netip.MustParsePrefix(nettest.ClusterCID6)},
	}
}

func logger() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func newWorld(t *testing.T, mode string) *world {
	t.Helper()
	w := &world{Stage: nettest.NewStage(t), t: t, mode: mode}
	for _, p := range w.Pods {
		p.Serve("tcp", tcpPort)
		p.Serve("udp", udpPort)
	}
	backend, err := modes.Open(options(mode))
	if err != nil {
		t.Fatal(err)
	}
	flows, err := conntrack.New()
	if err != nil {
		t.Fatal(err)
	}
	w.dp, err = dataplane.New(dataplane.Config{Backend: backend, Flows: flows, Logger: logger(), MinInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := w.dp.Run(ctx); err != nil {
			t.Errorf("dataplane: %v", err)
		}
	}()
	w.dp.Ready()
	t.Cleanup(func() {
		cancel()
		<-stopped
		b, err := modes.Open(options(w.dp.Mode()))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if err := b.Cleanup(context.Background()); err != nil {
			t.Error(err)
		}
		flows.Close()
	})
	return w
}

// in makes assertions report to a subtest.
func (w *world) in(t *testing.T) *world {
	c := *w
	c.t = t
	return &c
}

// service makes a service of its own with the pods as endpoints; change may alter it before it is set.
func (w *world) service(proto dataplane.Protocol, n int, pods []*nettest.Host, change func(*dataplane.Service)) *dataplane.Service {
	s := &dataplane.Service{
		ID:        dataplane.ID{Namespace: "flow", Name: "svc" + string(rune('a'+n/26)) + string(rune('a'+n%26)), Protocol: proto, Family: dataplane.IPv4},
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, 1, byte(n)}), ServicePort: 80,
		Endpoints: w.endpoints(proto, pods...),
	}
	if change != nil {
		change(s)
	}
	w.set(s)
	return s
}

func (w *world) endpoints(proto dataplane.Protocol, pods ...*nettest.Host) []dataplane.Endpoint {
	port := uint16(tcpPort)
	if proto == dataplane.UDP {
		port = udpPort
	}
	var out []dataplane.Endpoint
	for _, p := range pods {
		out = append(out, dataplane.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(p.IP), port),
			Ready: true, Serving: true, Local: p != w.Far})
	}
	return out
}

// set programs a version of a service and waits until it is in the kernel.
func (w *world) set(s *dataplane.Service) {
	w.t.Helper()
	w.dp.Set(s)
	w.settled()
}

// with is s with other endpoints.
func (w *world) with(s *dataplane.Service, pods ...*nettest.Host) *dataplane.Service {
	c := *s
	c.Endpoints = w.endpoints(s.Protocol, pods...)
	return &c
}

func (w *world) remove(s *dataplane.Service) {
	w.t.Helper()
	w.dp.Remove(s.ID)
	w.settled()
}

func (w *world) settled() {
	w.t.Helper()
	eventually(w.t, "the dataplane to be in sync", func() bool {
		for _, s := range w.dp.Status() {
			if s.Err != nil {
				w.t.Fatalf("service %s: %v", s.ID, s.Err)
			}
		}
		return w.dp.InSync()
	})
}

// eventually polls a condition; the bound is for broken code, not for slow machines.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		<-tick.C
	}
}

// network is the protocol's name for package net.
func network(p dataplane.Protocol) string {
	if p == dataplane.UDP {
		return "udp"
	}
	return "tcp"
}

func cluster(s *dataplane.Service) string {
	return netip.AddrPortFrom(s.ClusterIP, s.ServicePort).String()
}

func at(ip string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port).String()
}

// expect asks and fails unless one of who answers, having seen source (any if "").
func (w *world) expect(from *nettest.Host, proto dataplane.Protocol, to string, source string, who ...*nettest.Host) {
	w.t.Helper()
	w.check(from.Name+" asking "+to+"/"+proto.String(), from.Ask(network(proto), to), source, who...)
}

func (w *world) check(what string, a nettest.Answer, source string, who ...*nettest.Host) {
	w.t.Helper()
	if a.Fail != "" {
		w.t.Errorf("%s: %s", what, a.Fail)
		return
	}
	ok := false
	var names []string
	for _, h := range who {
		ok = ok || h.Name == a.Who
		names = append(names, h.Name)
	}
	if !ok {
		w.t.Errorf("%s: %s answered, want one of %v", what, a.Who, names)
	}
	if source != "" && a.Saw.Addr().String() != source {
		w.t.Errorf("%s: %s saw source %s, want %s", what, a.Who, a.Saw.Addr(), source)
	}
}

// fails asks and fails unless the attempt ends that way.
func (w *world) fails(from *nettest.Host, proto dataplane.Protocol, to, how string) {
	w.t.Helper()
	a := from.Ask(network(proto), to)
	if a.Fail != how {
		w.t.Errorf("%s asking %s/%s: got %q from %q, want %q", from.Name, to, proto, a.Fail, a.Who, how)
	}
}

// unanswered fails if the attempt is answered; whether it ends by a message or by silence is the network's choice.
func (w *world) unanswered(from *nettest.Host, proto dataplane.Protocol, to string) {
	w.t.Helper()
	if a := from.Ask(network(proto), to); a.Fail == "" {
		w.t.Errorf("%s asking %s/%s: %s answered, want nobody", from.Name, to, proto, a.Who)
	}
}

func tally(as []nettest.Answer) map[string]int {
	m := map[string]int{}
	for _, a := range as {
		if a.Fail != "" {
			m["failed: "+a.Fail]++
		} else {
			m[a.Who]++
		}
	}
	return m
}
