package bench

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	access "github.com/tripod-cluster/tripod/test/cluster"
	"github.com/tripod-cluster/tripod/test/figure"
)

// watched is for how many seconds the daemons' CPU time is watched.
const watched = 30

// usage is a daemon's memory and share of one processor.
type usage struct {
	rss float64 // MiB
	cpu float64 // percent of one processor
}

// probe prints, for both daemons, a line "name KiB ticks-in-the-time", and the tick rate first.
var probe = fmt.Sprintf(`
	ticks() { sed 's/.*) //' /proc/$1/stat | awk '{print $12 + $13}'; }
	for d in controld noded; do
		p=$(systemctl show -p MainPID --value $d)
		test "$p" != 0
		eval "pid_$d=$p before_$d=$(ticks $p)"
	done
	echo rate $(getconf CLK_TCK)
	sleep %d
	for d in controld noded; do
		eval "p=\$pid_$d before=\$before_$d"
		echo $d $(awk '/^VmRSS/{print $2}' /proc/$p/status) $(($(ticks $p) - before))
	done
`, watched)

// measureUsage runs probe in host i.
func measureUsage(i int) (map[string]usage, error) {
	out, err := cluster.Script(i, probe)
	if err != nil {
		return nil, err
	}
	found := map[string]usage{}
	var rate float64
	for l := range strings.Lines(out) {
		var name string
		var kib, ticks float64
		if n, _ := fmt.Sscanf(l, "rate %g", &rate); n == 1 {
			continue
		}
		if _, err := fmt.Sscanf(l, "%s %g %g", &name, &kib, &ticks); err != nil || rate == 0 {
			return nil, fmt.Errorf("host %d: %q: %v", i, out, err)
		}
		found[name] = usage{rss: kib / 1024, cpu: 100 * ticks / rate / watched}
	}
	if len(found) != 2 {
		return nil, fmt.Errorf("host %d: want both daemons, got %q", i, out)
	}
	return found, nil
}

// idle measures both daemons on every host, the application of `make up` being all that runs.
func idle(t *testing.T) []figure.Figure {
	leader, err := cluster.Leader()
	if err != nil {
		t.Fatal(err)
	}
	var all [access.Hosts + 1]map[string]usage
	var errs [access.Hosts + 1]error
	var wg sync.WaitGroup
	for i := 1; i <= access.Hosts; i++ {
		wg.Go(func() { all[i], errs[i] = measureUsage(i) })
	}
	wg.Wait()
	var follower, node usage
	for i := 1; i <= access.Hosts; i++ {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		larger := func(u *usage, than usage) { u.rss, u.cpu = max(u.rss, than.rss), max(u.cpu, than.cpu) }
		if i != leader {
			larger(&follower, all[i]["controld"])
		}
		larger(&node, all[i]["noded"])
	}
	var figures []figure.Figure
	for _, d := range []struct {
		name string
		u    usage
	}{{"controld, leader", all[leader]["controld"]}, {"controld, larger follower", follower}, {"noded, largest of three", node}} {
		figures = append(figures,
			figure.Alone(d.name+": RSS idle", "MiB", d.u.rss),
			figure.Alone(fmt.Sprintf("%s: CPU idle, %d s", d.name, watched), "% of a core", d.u.cpu))
	}
	return figures
}
