package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"
)

// fakeBackend records what it is asked for; fail makes it refuse.
type fakeBackend struct {
	name string

	mu      sync.Mutex
	calls   []string
	kernel  map[ID]*Service
	fail    error
	refused map[ID]error
	closed  bool
}

func newFake(name string) *fakeBackend { return &fakeBackend{name: name, kernel: map[ID]*Service{}} }

func (f *fakeBackend) Name() string { return f.name }

func (f *fakeBackend) do(call string, work func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	if f.fail != nil {
		return f.fail
	}
	return work()
}

func (f *fakeBackend) write(services []*Service) error {
	errs := ServiceErrors{}
	for _, s := range services {
		if err := f.refused[s.ID]; err != nil {
			errs[s.ID] = err
			continue
		}
		f.kernel[s.ID] = s
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

func (f *fakeBackend) Update(_ context.Context, services []*Service) error {
	return f.do("update "+names(services), func() error { return f.write(services) })
}

func (f *fakeBackend) Delete(_ context.Context, ids []ID) error {
	call := "delete"
	for _, id := range ids {
		call += " " + id.Name
	}
	return f.do(call, func() error {
		for _, id := range ids {
			delete(f.kernel, id)
		}
		return nil
	})
}

func (f *fakeBackend) Sync(_ context.Context, all []*Service) error {
	return f.do("sync "+names(all), func() error {
		f.kernel = map[ID]*Service{}
		return f.write(all)
	})
}

func (f *fakeBackend) Cleanup(context.Context) error {
	return f.do("cleanup", func() error { f.kernel = map[ID]*Service{}; return nil })
}

func (f *fakeBackend) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fakeBackend) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeBackend) holds(s *Service) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kernel[s.ID] != nil && f.kernel[s.ID].Equal(s)
}

func (f *fakeBackend) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func names(services []*Service) string {
	out := ""
	for i, s := range services {
		if i > 0 {
			out += " "
		}
		out += s.Name
	}
	return out
}

// fakeFlows records the services whose flows it was to clean.
type fakeFlows struct {
	mu   sync.Mutex
	seen [][]*Service
}

func (f *fakeFlows) Clean(_ context.Context, services []*Service) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, services)
	return len(services), nil
}

func (f *fakeFlows) take() [][]*Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.seen
	f.seen = nil
	return s
}

func testService(name string, p Protocol, eps ...string) *Service {
	s := &Service{ID: ID{Namespace: "ns", Name: name, Protocol: p, Family: IPv4}, ClusterIP: netip.MustParseAddr("10.96.0.1"), ServicePort: 80}
	for _, e := range eps {
		s.Endpoints = append(s.Endpoints, Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	return s
}

// start runs a Dataplane until the test ends.
func start(t *testing.T, cfg Config) *Dataplane {
	t.Helper()
	cfg.MinInterval, cfg.RetryMin, cfg.RetryMax = time.Microsecond, time.Millisecond, 20*time.Millisecond
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return d
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-limit.C:
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

var errKernel = errors.New("no buffer space")
