package benchstore

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/test/figure"
)

// result is what one round gave.
type result struct {
	ops  int
	took time.Duration
	p50  time.Duration
	p99  time.Duration
	cpu  time.Duration // of all servers
}

func (r result) perSecond() float64 { return float64(r.ops) / r.took.Seconds() }
func (r result) cpuPerOp() float64 {
	return float64(r.cpu) / float64(time.Microsecond) / float64(max(r.ops, 1))
}

// drive has clients call do, each again as soon as it returned, for so long or until so many calls were made; what the
// first tenth of the time gave is not counted. do is told which client it is and the number of the call.
func drive(t testing.TB, clients int, limits limits, cpu func() time.Duration, do func(client int, n int64) error) result {
	t.Helper()
	var (
		all   = make([][]time.Duration, clients)
		errs  = make([]error, clients)
		calls atomic.Int64
		hot   atomic.Bool
		stop  atomic.Bool
		wg    sync.WaitGroup
	)
	for i := range clients {
		wg.Go(func() {
			for !stop.Load() {
				n := calls.Add(1)
				if limits.ops > 0 && n > int64(limits.ops) {
					return
				}
				began := time.Now()
				if errs[i] = do(i, n); errs[i] != nil {
					return
				}
				if hot.Load() {
					all[i] = append(all[i], time.Since(began))
				}
			}
		})
	}
	if limits.ops == 0 {
		time.Sleep(limits.time / 10)
	}
	began, spent := time.Now(), cpu()
	hot.Store(true)
	if limits.ops == 0 {
		time.Sleep(limits.time)
		stop.Store(true)
	} else {
		wg.Wait()
	}
	hot.Store(false)
	r := result{took: time.Since(began), cpu: cpu() - spent}
	wg.Wait()
	var flat []time.Duration
	for i := range all {
		if errs[i] != nil {
			t.Fatalf("client %d of %d: %v", i+1, clients, errs[i])
		}
		flat = append(flat, all[i]...)
	}
	r.ops = len(flat)
	if r.ops > 0 {
		r.p50, r.p99 = figure.Quantile(flat, 0.5), figure.Quantile(flat, 0.99)
	}
	return r
}

// limits ends a round: after a time, or after a number of operations.
type limits struct {
	time time.Duration
	ops  int
}

// inTurn runs rounds of ours and the peer's, one after the other.
func inTurn(rounds int, ours, peer func() result) (a, b []result) {
	for range rounds {
		a = append(a, ours())
		b = append(b, peer())
	}
	return a, b
}

func median[T any](rs []T, f func(T) float64) float64 {
	var v []float64
	for _, r := range rs {
		v = append(v, f(r))
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// compared gives the figures of rounds of one load. what is one operation's name, for the unit.
func compared(name string, ours, peer []result) []figure.Figure {
	more := func(what, unit string, f func(result) float64) figure.Figure {
		return figure.More(name+what, unit, median(ours, f), median(peer, f))
	}
	less := func(what, unit string, f func(result) float64) figure.Figure {
		return figure.Less(name+what, unit, median(ours, f), median(peer, f))
	}
	return []figure.Figure{
		more(", throughput", "/s", result.perSecond),
		less(", p50", "ms", func(r result) float64 { return figure.Milliseconds(r.p50) }),
		less(", p99", "ms", func(r result) float64 { return figure.Milliseconds(r.p99) }),
		less(", processor time an operation", "µs", result.cpuPerOp),
	}
}
