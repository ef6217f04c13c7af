package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// FlowCleaner forgets connection tracking entries that would keep UDP datagrams going to backends that left.
type FlowCleaner interface {
	// Clean deletes UDP flows addressed to one of the services whose backend is not among its serving endpoints,
	// and returns how many. Flows of other destinations stay.
	Clean(ctx context.Context, services []*Service) (int, error)
}

// Config is what New needs. Only Backend is required.
type Config struct {
	Backend Backend
	// Stale are the other modes' backends: what they left behind (a mode changed while the daemon was down) is
	// cleaned up once Backend is in sync, and they are closed.
	Stale []Backend
	// Flows cleans connection tracking; nil: not cleaned.
	Flows FlowCleaner

	Logger     *slog.Logger          // default: slog.Default()
	Registerer prometheus.Registerer // default: none

	MinInterval    time.Duration // least time between two writes, so that bursts coalesce; default 20 ms
	ResyncInterval time.Duration // time between two verifications of the whole; default 5 min
	RetryMin       time.Duration // first wait after a failure, doubled each time; default 250 ms
	RetryMax       time.Duration // longest wait; default 30 s
	// UnhealthyAfter is how long a change may wait before Healthy complains; default 1 min.
	UnhealthyAfter time.Duration
}

func (c *Config) defaults() {
	set := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.MinInterval, 20*time.Millisecond)
	set(&c.ResyncInterval, 5*time.Minute)
	set(&c.RetryMin, 250*time.Millisecond)
	set(&c.RetryMax, 30*time.Second)
	set(&c.UnhealthyAfter, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Dataplane keeps a Backend in line with the services it is told of. Its methods may be called from any goroutine.
type Dataplane struct {
	cfg     Config
	metrics *metrics
	log     *slog.Logger

	wake     chan struct{} // capacity 1
	ready    chan struct{} // closed by Ready
	switches chan switchRequest
	once     sync.Once

	mu       sync.Mutex
	backend  Backend
	services map[ID]*record
	fullAt   time.Time // when to verify the whole next
	fullErr  error     // how the last verification ended
	fullBad  time.Time // since when verifications fail
	fullTry  int       // failures in a row
	synced   time.Time // end of the last successful write
	first    bool      // the first whole write has succeeded
	writing  bool      // Run is at it
}

type switchRequest struct {
	to   Backend
	done chan error
}

// New checks cfg and makes a Dataplane; nothing is written before Run.
func New(cfg Config) (*Dataplane, error) {
	if cfg.Backend == nil {
		return nil, errors.New("dataplane: no backend configured: choose mode iptables or ipvs")
	}
	cfg.defaults()
	d := &Dataplane{
		cfg: cfg, log: cfg.Logger, backend: cfg.Backend,
		wake: make(chan struct{}, 1), ready: make(chan struct{}), switches: make(chan switchRequest),
		services: map[ID]*record{},
	}
	m, err := newMetrics(cfg.Registerer, d)
	if err != nil {
		return nil, err
	}
	d.metrics = m
	return d, nil
}

// Set adds a service or replaces its earlier version. svc must not change afterwards.
func (d *Dataplane) Set(svc *Service) {
	d.mu.Lock()
	r := d.services[svc.ID]
	if r == nil {
		r = &record{}
		d.services[svc.ID] = r
	}
	if r.want != nil && r.want.Equal(svc) {
		d.mu.Unlock()
		return
	}
	r.want = svc
	r.queue(time.Now())
	d.mu.Unlock()
	d.metrics.queued.SetToCurrentTime()
	d.poke()
}

// Remove withdraws a service. Unknown IDs are ignored.
func (d *Dataplane) Remove(id ID) {
	d.mu.Lock()
	r := d.services[id]
	if r == nil || r.want == nil {
		d.mu.Unlock()
		return
	}
	r.want = nil
	r.queue(time.Now())
	d.mu.Unlock()
	d.metrics.queued.SetToCurrentTime()
	d.poke()
}

// Ready tells that every service that exists has been Set. Before it nothing is written: rules that an earlier
// process left keep working until the whole set is known. Later calls do nothing.
func (d *Dataplane) Ready() { d.once.Do(func() { close(d.ready) }) }

// Resync asks for a verification of the whole soon.
func (d *Dataplane) Resync() {
	d.mu.Lock()
	d.fullAt = time.Now()
	d.mu.Unlock()
	d.poke()
}

// Mode is the current backend's name.
func (d *Dataplane) Mode() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.backend.Name()
}

// SetBackend moves to another backend while traffic flows: the new one is written whole, then the old one is cleaned
// up and closed. If the new one cannot be written it is cleaned up and closed, the old one stays, and the error
// tells why. It waits for Run to do so, or for ctx.
func (d *Dataplane) SetBackend(ctx context.Context, b Backend) error {
	req := switchRequest{to: b, done: make(chan error, 1)}
	select {
	case d.switches <- req:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-req.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run writes until ctx ends, and then returns nil. The kernel's rules stay. Only one Run at a time.
func (d *Dataplane) Run(ctx context.Context) error {
	select {
	case <-d.ready:
	case <-ctx.Done():
		return nil
	}
	d.Resync()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var changed <-chan struct{}
		if m, ok := d.current().(Maintainer); ok {
			changed = m.Changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case req := <-d.switches:
			d.setWriting(true)
			req.done <- d.switchTo(ctx, req.to)
		case <-d.wake:
		case <-changed:
		case <-timer.C:
		}
		d.setWriting(true)
		next := d.step(ctx)
		d.setWriting(false)
		timer.Reset(next)
		// Bursts coalesce here: whatever is queued meanwhile is one write.
		pause := time.NewTimer(d.cfg.MinInterval)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

func (d *Dataplane) current() Backend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.backend
}

func (d *Dataplane) setWriting(b bool) {
	d.mu.Lock()
	d.writing = b
	d.mu.Unlock()
}

func (d *Dataplane) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}
