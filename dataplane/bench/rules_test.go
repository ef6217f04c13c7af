package bench

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/iptables"
	"github.com/tripod-cluster/tripod/dataplane/nettest"
	"github.com/tripod-cluster/tripod/test/figure"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func compare(name string, ours, peer time.Duration) figure.Figure {
	return figure.Less(name, "ms", figure.Milliseconds(ours), figure.Milliseconds(peer))
}

func alone(name string, ours time.Duration) figure.Figure {
	return figure.Alone(name, "ms", figure.Milliseconds(ours))
}

func services(n int) []*dataplane.Service {
	out := make([]*dataplane.Service, n)
	for i := range out {
		out[i] = one(i, 0)
	}
	return out
}

// one is service number i; its endpoints depend on version.
func one(i, version int) *dataplane.Service {
	ep := func(k int) dataplane.Endpoint {
		return dataplane.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), uint16(8080+k)), Ready: true, Serving: true}
	}
	return &dataplane.Service{
		ID:        dataplane.ID{Namespace: "bench", Name: fmt.Sprintf("svc-%05d", i), Port: "http", Protocol: dataplane.TCP, Family: dataplane.IPv4},
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), ServicePort: 80,
		Endpoints: []dataplane.Endpoint{ep(0), ep(1 + version)},
	}
}

func backend(t *testing.T) *iptables.Backend {
	t.Helper()
	b, err := iptables.New(iptables.Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func timed(t *testing.T, f func() error) time.Duration {
	t.Helper()
	start := time.Now()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// median of several runs of f, which gets the run's number.
func median(t *testing.T, runs int, f func(run int) error) time.Duration {
	t.Helper()
	var all []time.Duration
	for i := range runs {
		all = append(all, timed(t, func() error { return f(i) }))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func pipe(input []byte, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// change cuts out of a saved rule set what a restore of one service's chains needs.
func change(saved []byte, name string) []byte {
	chains := map[string]bool{}
	var rules []string
	for _, line := range strings.Split(string(saved), "\n") {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "-A" && strings.HasPrefix(f[1], "KUBE-S") && f[1] != "KUBE-SERVICES" && strings.Contains(line, name) {
			chains[f[1]] = true
			rules = append(rules, line)
		}
	}
	out := []string{"*nat"}
	for c := range chains {
		out = append(out, ":"+c+" - [0:0]")
	}
	out = append(append(out, rules...), "COMMIT", "")
	return []byte(strings.Join(out, "\n"))
}

func TestBenchServiceRules(t *testing.T) {
	dir := os.Getenv("TRIPOD_BENCH")
	n, runs := 100, 3
	if dir != "" {
		n, runs = 5000, 15
	}
	ctx := t.Context()
	all := services(n)
	b := backend(t)
	full := timed(t, func() error { return b.Sync(ctx, all) })
	again := median(t, 3, func(int) error { return b.Sync(ctx, all) })
	endpoint := median(t, runs, func(i int) error { return b.Update(ctx, []*dataplane.Service{one(n/2, 1+i)}) })
	come := median(t, runs, func(i int) error { return b.Update(ctx, []*dataplane.Service{one(n+i, 0)}) })
	gone := median(t, runs, func(i int) error { return b.Delete(ctx, []dataplane.ID{one(n+i, 0).ID}) })

	saved, err := exec.Command("iptables-nft-save").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := len(regexp.MustCompile(`(?m)^-A KUBE-SERVICES -d`).FindAll(saved, -1)); got != n {
		t.Fatalf("%d services are in the kernel, want %d", got, n)
	}
	step := change(saved, one(n/2, 0).Name)
	if err := b.Cleanup(ctx); err != nil {
		t.Fatal(err)
	}
	var figures []figure.Figure
	for _, peer := range []string{"iptables-nft", "iptables-legacy"} {
		pf := timed(t, func() error { return pipe(saved, peer+"-restore", "--noflush") })
		pe := median(t, runs, func(int) error { return pipe(step, peer+"-restore", "--noflush") })
		figures = append(figures,
			compare(fmt.Sprintf("%d services at once, against %s-restore", n, peer), full, pf),
			compare(fmt.Sprintf("one endpoint change among %d services, against %s-restore", n, peer), endpoint, pe))
		for _, table := range []string{"nat", "filter"} {
			for _, op := range []string{"-F", "-X"} {
				if err := pipe(nil, peer, "-t", table, op); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	figures = append(figures, alone(fmt.Sprintf("one service more among %d", n), come),
		alone(fmt.Sprintf("one service less among %d", n), gone),
		alone(fmt.Sprintf("verification of %d services, nothing to repair", n), again))
	if err := figure.Publish(dir, "rules", append(figures, figure.Load())); err != nil {
		t.Fatal(err)
	}
}
