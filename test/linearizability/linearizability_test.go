package linearizability

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

var (
	longFor  = flag.Duration("time", 0, "how long TestLong goes on (make linearizability TIME=30m)")
	seedFlag = flag.Uint64("seed", 0, "seed of the first history; 0 takes the time of day")
	only     = flag.String("faults", "", "comma-separated kinds of faults to inject; all when empty")
	loadFlag = flag.String("load", "", "the kind of traffic; each in turn when empty")
	keepIn   = flag.String("keep", "", "directory for what violations were found in; a temporary one when empty")
	useEtcd  = flag.Bool("etcd", false, "run TestLong against etcd itself, to try the judge")
)

// servers is where the binaries are built, once.
var servers string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "linearizability")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	servers = dir
	// Three servers, their clients and the judge share few processors: what is a timeout on an idle
	// machine is a moment here, and calls with an open outcome are what costs the judge.
	traffic.RequestTimeout = 500 * time.Millisecond
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build compiles a program of this module or one that it requires.
func build(t *testing.T, name, pkg string, tags ...string) string {
	t.Helper()
	out := filepath.Join(servers, name)
	if _, err := os.Stat(out); err == nil {
		return out
	}
	args := []string{"build", "-o", out, "-tags", strings.Join(tags, ","), pkg}
	if b, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, b)
	}
	return out
}

func ours(t *testing.T) string {
	return build(t, "server", "github.com/tripod-cluster/tripod/test/etcdserver", "faultpoints")
}

// newPlan is a history of our servers, its length and traffic by seed.
func newPlan(t *testing.T, seed uint64) plan {
	t.Helper()
	p := plan{
		seed: seed, binary: ours(t), load: loads[seed%uint64(len(loads))], faults: faults, count: 5, rest: time.Second,
		// Small snapshots, so that a member that was away gets one in place of the log.
		flags:  []string{"--snapshot-count=50", "--election-timeout=500", "--log-level=info", "--watch-progress-notify-interval=100ms"},
		disk:   diskFaults{SnapshotInterval: 200 * time.Millisecond, TrailingBytes: 1},
		export: exportLog,
	}
	root := *keepIn
	if root == "" {
		root = os.TempDir()
	}
	p.dir = filepath.Join(root, fmt.Sprintf("history-%d-%d", os.Getpid(), seed))
	if *only != "" {
		p.faults = nil
		for _, f := range faults {
			if slices.Contains(strings.Split(*only, ","), f.name) {
				p.faults = append(p.faults, f)
			}
		}
		if len(p.faults) == 0 {
			t.Fatalf("no fault is named in %q", *only)
		}
	}
	if *loadFlag != "" {
		i := slices.IndexFunc(loads, func(l load) bool { return l.name == *loadFlag })
		if i < 0 {
			t.Fatalf("no traffic is named %q", *loadFlag)
		}
		p.load = loads[i]
	}
	return p
}

// onEtcd turns a plan into one for etcd itself.
func (p plan) onEtcd(t *testing.T) plan {
	p.binary = build(t, "etcd", "go.etcd.io/etcd/server/v3")
	p.flags = []string{"--snapshot-count=150", "--heartbeat-interval=50", "--election-timeout=500", "--log-level=warn", "--watch-progress-notify-interval=100ms"}
	p.export = func(now, before []string) (x exported, err error) {
		x.requests, err = report.PersistedRequests(zap.NewNop(), slices.Concat(now, before))
		return x, err
	}
	return p
}

func firstSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return uint64(time.Now().UnixMilli())
}

// totals is what many histories came to.
type totals struct {
	histories, operations, failed, events, requests, snapshots int
	undecided, violations, notInjected                         int
	faults                                                     map[string]int
}

func (s *totals) add(v verdict) {
	s.histories++
	s.operations += v.operations
	s.failed += v.failed
	s.events += v.events
	s.requests += v.requests
	s.snapshots += v.snapshots
	for k, n := range v.faults {
		s.faults[k] += n
	}
	s.notInjected += v.notInjected
	if v.undecided {
		s.undecided++
	}
	if v.violation != nil {
		s.violations++
	}
}

func (s *totals) String() string {
	kinds := ""
	for _, f := range faults {
		if n := s.faults[f.name]; n > 0 {
			kinds += fmt.Sprintf("  %-18s %d\n", f.name, n)
		}
	}
	return fmt.Sprintf("histories %d, operations %d (%d with an error or open outcome), requests in the log %d, watch events %d, snapshots installed %d\nfaults (%d more found too much else broken):\n%sundecided %d, violations %d",
		s.histories, s.operations, s.failed, s.requests, s.events, s.snapshots, s.notInjected, kinds, s.undecided, s.violations)
}

// check runs a plan and reports what it came to.
func check(ctx context.Context, t *testing.T, p plan, s *totals) {
	t.Helper()
	v, err := p.run(ctx)
	if err != nil {
		t.Errorf("seed %d: no verdict: %v", p.seed, err)
		return
	}
	s.add(v)
	switch {
	case v.violation != nil:
		t.Errorf("seed %d (%s): VIOLATION, kept in %s: %v", p.seed, p.load.name, v.dir, v.violation)
	case v.undecided:
		t.Logf("seed %d (%s): not decided within %v, kept in %s", p.seed, p.load.name, judgeFor, v.dir)
	default:
		t.Logf("seed %d (%s): sound; operations %d (%d failed), requests %d, events %d, snapshots %d, faults %v", p.seed, p.load.name, v.operations, v.failed, v.requests, v.events, v.snapshots, v.faults)
	}
}

// Two histories with a few faults each are sound.
func TestLinearizability(t *testing.T) {
	s := &totals{faults: map[string]int{}}
	seed := firstSeed()
	for i := range uint64(2) {
		p := newPlan(t, seed+i)
		p.count = 4
		check(t.Context(), t, p, s)
	}
	t.Log(s)
}

// TestLong makes histories for as long as -time says; none without it. It prints its sums as
// it goes, so that a run that is cut off has said something.
func TestLong(t *testing.T) {
	s := &totals{faults: map[string]int{}}
	seed := firstSeed()
	for begin := time.Now(); time.Since(begin) < *longFor; seed++ {
		p := newPlan(t, seed)
		if *useEtcd {
			p = p.onEtcd(t)
		}
		if s.histories == 0 {
			fmt.Printf("first seed %d\n", seed)
		}
		check(t.Context(), t, p, s)
		fmt.Printf("%s\n%v\n", time.Since(begin).Round(time.Second), s)
	}
	if *longFor > 0 {
		t.Log(s)
	}
}
