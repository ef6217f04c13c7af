package iptables

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
)

func addr(s string) netip.Addr         { return netip.MustParseAddr(s) }
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func endpoints(addrs ...string) []dataplane.Endpoint {
	var out []dataplane.Endpoint
	for _, a := range addrs {
		out = append(out, dataplane.Endpoint{Addr: addrPort(a), Ready: true, Serving: true, Local: strings.HasPrefix(a, "10.244.1.")})
	}
	return out
}

func web(eps ...string) *dataplane.Service {
	return &dataplane.Service{
		ID:        dataplane.ID{Namespace: "default", Name: "web", Port: "http", Protocol: dataplane.TCP, Family: dataplane.IPv4},
		ClusterIP: addr("10.96.0.10"), ServicePort: 80, Endpoints: endpoints(eps...),
	}
}

func newBackend(t *testing.T) *Backend {
	t.Helper()
	b, err := New(Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Cleanup(context.Background()); err != nil {
			t.Error(err)
		}
		b.Close()
	})
	return b
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestSpike(t *testing.T) {
	b := newBackend(t)
	ctx := context.Background()
	if err := b.Sync(ctx, nil); err != nil {
		t.Fatal(err)
	}
	none := web()
	none.Name = "none"
	none.NodePort = 30081
	if err := b.Update(ctx, []*dataplane.Service{none}); err != nil {
		t.Fatal(err)
	}
}
