package runtime

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const patience = 60 * time.Second

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s: not %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type running struct {
	*Group
	stop func() error
}

func run(t *testing.T, o Options, builders map[string]Builder) *running {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	if o.BackoffMin == 0 {
		o.BackoffMin, o.BackoffMax = 5*time.Millisecond, 20*time.Millisecond
	}
	g := NewGroup(o)
	for _, name := range []string{"a", "b"} {
		if b := builders[name]; b != nil {
			g.Add(name, b)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	var once sync.Once
	var err error
	r := &running{g, func() error {
		once.Do(func() {
			cancel()
			select {
			case err = <-done:
			case <-time.After(patience):
				err = errors.New("Run did not return")
			}
		})
		return err
	}}
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// ticking reconciles one key again and again, and counts.
func ticking(n *atomic.Int64) Builder {
	return func(q Queue) (Controller, error) {
		q.Add("tick")
		return Controller{Reconcile: func(context.Context, string) (time.Duration, error) {
			n.Add(1)
			return time.Millisecond, nil
		}}, nil
	}
}

func status(g *running, name string) Status {
	for _, s := range g.Health() {
		if s.Name == name {
			return s
		}
	}
	return Status{}
}

func TestPanicHarmsOnlyItsController(t *testing.T) {
	var others, panics, good atomic.Int64
	reg := prometheus.NewRegistry()
	g := run(t, Options{Registerer: reg}, map[string]Builder{
		"a": func(q Queue) (Controller, error) {
			q.Add("poison")
			q.Add("good")
			return Controller{Workers: 1, Reconcile: func(_ context.Context, key string) (time.Duration, error) {
				if key == "poison" && panics.Load() < 3 {
					panics.Add(1)
					panic("boom")
				}
				good.Add(1)
				return time.Millisecond, nil
			}}, nil
		},
		"b": ticking(&others),
	})
	eventually(t, "restarted three times", func() bool { return status(g, "a").Restarts == 3 })
	eventually(t, "healthy again", func() bool { return status(g, "a").Healthy })
	if e := status(g, "a").LastError; !strings.Contains(e, "boom") || !strings.Contains(e, "poison") {
		t.Errorf("last error %q names neither the panic nor its key", e)
	}
	if s := status(g, "b"); s.Restarts != 0 || !s.Healthy {
		t.Errorf("the other controller: %+v", s)
	}
	before, goodBefore := others.Load(), good.Load()
	eventually(t, "both going on", func() bool { return others.Load() > before+5 && good.Load() > goodBefore+5 })
	if got := metric(t, reg, "tripod_controller_restarts_total", "a"); got != 3 {
		t.Errorf("restarts metric %v, want 3", got)
	}
	if got := metric(t, reg, "tripod_controller_healthy", "b"); got != 1 {
		t.Errorf("healthy metric of the other %v, want 1", got)
	}
}

func TestPoisonedKeyDoesNotStarveOthers(t *testing.T) {
	var good atomic.Int64
	run(t, Options{}, map[string]Builder{"a": func(q Queue) (Controller, error) {
		q.Add("poison")
		q.Add("good")
		return Controller{Workers: 1, Reconcile: func(_ context.Context, key string) (time.Duration, error) {
			if key == "poison" {
				panic("always")
			}
			good.Add(1)
			return time.Millisecond, nil
		}}, nil
	}})
	eventually(t, "the good key reconciled often", func() bool { return good.Load() > 50 })
}

func TestHangIsSeenCancelledAndReplaced(t *testing.T) {
	var others, second atomic.Int64
	release := make(chan struct{})
	cancelled := make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	g := run(t, Options{HangGrace: 30 * time.Millisecond, StopGrace: 20 * time.Millisecond}, map[string]Builder{
		"a": func(q Queue) (Controller, error) {
			q.Add("x")
			q.Add("y")
			return Controller{Workers: 1, Deadline: 30 * time.Millisecond, Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
				if first.CompareAndSwap(true, false) {
					<-ctx.Done()
					close(cancelled)
					<-release // deaf to its context
					return 0, nil
				}
				second.Add(1)
				return time.Millisecond, nil
			}}, nil
		},
		"b": ticking(&others),
	})
	<-cancelled
	eventually(t, "restarted", func() bool { return status(g, "a").Restarts == 1 })
	if e := status(g, "a").LastError; !strings.Contains(e, "hangs") {
		t.Errorf("last error %q does not say that it hangs", e)
	}
	eventually(t, "a new instance at work", func() bool { return second.Load() > 3 && status(g, "a").Healthy })
	before := others.Load()
	eventually(t, "the other going on", func() bool { return others.Load() > before+5 })

	// The deaf goroutine is named when all is to end.
	if err := g.stop(); err == nil || !strings.Contains(err.Error(), "a did not stop") {
		t.Errorf("Run returned %v, want it to name controller a", err)
	}
	close(release)
}

func TestSlowReconcileIsCancelledAndRetried(t *testing.T) {
	var calls atomic.Int64
	g := run(t, Options{}, map[string]Builder{"a": func(q Queue) (Controller, error) {
		q.Add("x")
		return Controller{Deadline: 20 * time.Millisecond, Reconcile: func(ctx context.Context, _ string) (time.Duration, error) {
			if calls.Add(1) < 3 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 0, nil
		}}, nil
	}})
	eventually(t, "tried a third time", func() bool { return calls.Load() == 3 })
	if s := status(g, "a"); s.Restarts != 0 || !strings.Contains(s.LastError, "took longer") {
		t.Errorf("status %+v", s)
	}
}

func TestErrorsAreRetriedAndKeptInHealth(t *testing.T) {
	var calls atomic.Int64
	g := run(t, Options{}, map[string]Builder{"a": func(q Queue) (Controller, error) {
		q.Add("x")
		return Controller{Reconcile: func(context.Context, string) (time.Duration, error) {
			if calls.Add(1) < 4 {
				return 0, errors.New("not yet")
			}
			return 0, nil
		}}, nil
	}})
	eventually(t, "tried a fourth time", func() bool { return calls.Load() == 4 })
	if s := status(g, "a"); !s.Healthy || s.LastError != "not yet" {
		t.Errorf("status %+v", s)
	}
}

func TestBuilderAndBackgroundFailuresRestart(t *testing.T) {
	var builds, loops atomic.Int64
	g := run(t, Options{}, map[string]Builder{"a": func(Queue) (Controller, error) {
		switch builds.Add(1) {
		case 1:
			return Controller{}, errors.New("cannot be built")
		case 2:
			panic("in the builder")
		}
		return Controller{Background: []func(context.Context) error{func(ctx context.Context) error {
			switch loops.Add(1) {
			case 1:
				panic("in the loop")
			case 2:
				return nil // too early
			}
			<-ctx.Done()
			return nil
		}}}, nil
	}})
	eventually(t, "running in the end", func() bool { return loops.Load() == 3 && status(g, "a").Healthy })
}

func TestNothingRunsAfterRunReturned(t *testing.T) {
	var n atomic.Int64
	g := run(t, Options{}, map[string]Builder{"a": ticking(&n), "b": ticking(&n)})
	eventually(t, "running", func() bool { return n.Load() > 10 })
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	before := n.Load()
	time.Sleep(30 * time.Millisecond)
	if n.Load() != before {
		t.Error("a reconcile ran after Run had returned")
	}
	if s := status(g, "a"); s.Healthy || s.Message != "stopped" {
		t.Errorf("status after the end: %+v", s)
	}
}

func metric(t *testing.T, reg *prometheus.Registry, name, controller string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if hasLabel(m, controller) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s of controller %s", name, controller)
	return 0
}

func hasLabel(m *dto.Metric, value string) bool {
	for _, l := range m.GetLabel() {
		if l.GetValue() == value {
			return true
		}
	}
	return false
}
