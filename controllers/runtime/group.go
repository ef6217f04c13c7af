package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options of a Group. Zero values mean the defaults.
type Options struct {
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics are exported
	// Workers overrides Controller.Workers by controller name.
	Workers map[string]int
	// Start is called once all controllers are built, that is, when every
	// informer is known to its factory. It must not block.
	Start func(ctx context.Context)
	// BackoffMin and BackoffMax bound the wait before a failed controller is
	// built anew: 1 s and 1 min.
	BackoffMin, BackoffMax time.Duration
	// HangGrace is how long a reconcile may go on after its deadline has ended
	// its context before it counts as hung: 30 s.
	HangGrace time.Duration
	// StopGrace is how long an ended instance is waited for before its
	// goroutines count as strays: 5 s. Run returns within twice that.
	StopGrace time.Duration
}

// Group runs controllers side by side.
type Group struct {
	opts    Options
	metrics *metrics
	all     []*supervised

	strays sync.WaitGroup // goroutines of instances that did not end in time
	mu     sync.Mutex
	stray  map[string]int // controller name to number of stray instances
}

// Status is the health of one controller.
type Status struct {
	Name    string `json:"name"`
	Healthy bool   `json:"healthy"`
	// Message says why a controller is not healthy, or is empty.
	Message string `json:"message,omitempty"`
	// Restarts counts the failures (panics, hangs) that made it be built anew.
	Restarts int `json:"restarts"`
	// LastError is the latest error or failure, kept after it is over.
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`
	// QueueDepth is how many keys wait to be reconciled.
	QueueDepth int `json:"queueDepth"`
}

// supervised is a controller through all its lives.
type supervised struct {
	group *Group
	name  string
	build Builder
	log   *slog.Logger

	mu       sync.Mutex
	current  *instance
	healthy  bool
	message  string
	restarts int
	lastErr  error
	lastTime time.Time
	held     map[string]hold
}

// hold keeps a key away from the workers after it made one panic.
type hold struct {
	until time.Time
	times int
}

// NewGroup returns an empty group.
func NewGroup(o Options) *Group {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.BackoffMin <= 0 {
		o.BackoffMin = time.Second
	}
	if o.BackoffMax <= 0 {
		o.BackoffMax = time.Minute
	}
	if o.HangGrace <= 0 {
		o.HangGrace = 30 * time.Second
	}
	if o.StopGrace <= 0 {
		o.StopGrace = 5 * time.Second
	}
	g := &Group{opts: o, stray: map[string]int{}}
	g.metrics = newMetrics(o.Registerer, g)
	return g
}

// Add registers a controller. Names must differ; not to be called after Run.
func (g *Group) Add(name string, b Builder) {
	g.all = append(g.all, &supervised{
		group: g, name: name, build: b,
		log:     g.opts.Log.With("controller", name),
		message: "not started",
		held:    map[string]hold{},
	})
}

// Run runs all controllers until ctx ends. It returns when all their goroutines
// have ended; the error names controllers whose goroutines had not after twice
// StopGrace, which cannot write any more but are still there.
func (g *Group) Run(ctx context.Context) error {
	first := make([]*instance, len(g.all))
	for i, s := range g.all {
		in, err := newInstance(s)
		if err != nil {
			s.setFailure(err)
			continue
		}
		first[i] = in
	}
	if g.opts.Start != nil {
		g.opts.Start(ctx)
	}
	var wg sync.WaitGroup
	for i, s := range g.all {
		wg.Go(func() { s.supervise(ctx, first[i]) })
	}
	wg.Wait()

	ended := make(chan struct{})
	go func() { g.strays.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(g.opts.StopGrace):
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var names []string
	for name, n := range g.stray {
		if n > 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	sort.Strings(names)
	return fmt.Errorf("controllers %s did not stop: a reconcile ignores its context; restart controld to be rid of it", strings.Join(names, ", "))
}

// supervise runs instances of s, one after the other, until ctx ends.
func (s *supervised) supervise(ctx context.Context, in *instance) {
	backoff := s.group.opts.BackoffMin
	for ctx.Err() == nil {
		started := time.Now()
		var err error
		if in == nil {
			if in, err = newInstance(s); err != nil {
				s.setFailure(err)
			}
		}
		if in != nil {
			s.setCurrent(in)
			err = in.run(ctx)
			s.setCurrent(nil)
			in = nil
		}
		if ctx.Err() != nil {
			break
		}
		if time.Since(started) > 5*s.group.opts.BackoffMax {
			backoff = s.group.opts.BackoffMin
		}
		s.failedOnce(err, backoff)
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, s.group.opts.BackoffMax)
	}
	if in != nil {
		in.queue.ShutDown()
	}
	s.setMessage("stopped", false)
}

func (s *supervised) failedOnce(err error, backoff time.Duration) {
	if err == nil {
		err = errors.New("ended without a reason")
	}
	attrs := []any{"err", err, "restart_in", backoff}
	var p *PanicError
	if errors.As(err, &p) {
		attrs = append(attrs, "stack", string(p.Stack))
		s.group.metrics.panics.WithLabelValues(s.name).Inc()
	}
	s.log.Error("controller failed", attrs...)
	s.group.metrics.restarts.WithLabelValues(s.name).Inc()
	s.setFailure(err)
	s.mu.Lock()
	s.restarts++
	s.mu.Unlock()
}

// settle waits for the goroutines of an ended instance, and after StopGrace
// counts them as strays.
func (g *Group) settle(in *instance) {
	ended := make(chan struct{})
	g.strays.Add(1)
	g.mu.Lock()
	g.stray[in.sup.name]++
	g.mu.Unlock()
	go func() {
		in.workers.Wait()
		g.mu.Lock()
		g.stray[in.sup.name]--
		g.mu.Unlock()
		close(ended)
		g.strays.Done()
	}()
	select {
	case <-ended:
	case <-time.After(g.opts.StopGrace):
		in.log.Error("controller's goroutines did not end; left behind with a cancelled context", "after", g.opts.StopGrace)
	}
}

// Health tells how the controllers are, in the order they were added.
func (g *Group) Health() []Status {
	out := make([]Status, 0, len(g.all))
	for _, s := range g.all {
		s.mu.Lock()
		st := Status{Name: s.name, Healthy: s.healthy, Message: s.message, Restarts: s.restarts, LastErrorTime: s.lastTime}
		if s.lastErr != nil {
			st.LastError = s.lastErr.Error()
		}
		in := s.current
		s.mu.Unlock()
		if in != nil {
			st.QueueDepth = in.queue.Len()
			if w, ok := in.overdue(); ok {
				st.Healthy = false
				st.Message = (&HangError{Key: w.key, For: time.Since(w.since)}).Error()
			}
		}
		out = append(out, st)
	}
	return out
}

// Explain asks a controller what an object of its kind waits for.
func (g *Group) Explain(controller, namespace, name string) (waits []Wait, err error) {
	for _, s := range g.all {
		if s.name != controller {
			continue
		}
		s.mu.Lock()
		in, healthy, message := s.current, s.healthy, s.message
		s.mu.Unlock()
		if in == nil || !healthy {
			if message == "" {
				message = "it has not started yet"
			}
			return nil, fmt.Errorf("controller %s cannot tell: %s", controller, message)
		}
		if in.ctl.Explain == nil {
			return nil, fmt.Errorf("controller %s explains nothing", controller)
		}
		defer in.catch("explain "+namespace+"/"+name, func(p *PanicError) {
			waits, err = nil, p
		})
		if wait, ok := in.overdue(); ok && wait.key == namespace+"/"+name {
			waits = append(waits, Wait{For: (&HangError{Key: wait.key, For: time.Since(wait.since)}).Error(), By: "controller " + controller})
		}
		more, err := in.ctl.Explain(namespace, name)
		return append(waits, more...), err
	}
	return nil, fmt.Errorf("no controller %s runs here", controller)
}

// overdue returns a piece of work that has passed its deadline.
func (in *instance) overdue() (work, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, w := range in.busy {
		if time.Since(w.since) > in.ctl.Deadline {
			return w, true
		}
	}
	return work{}, false
}

func (s *supervised) setCurrent(in *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = in
	if in != nil {
		s.message, s.healthy = "waiting for its caches", false
	}
}

func (s *supervised) setMessage(m string, healthy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.message, s.healthy = m, healthy
}

func (s *supervised) setError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastErr, s.lastTime = err, time.Now()
}

func (s *supervised) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastErr, s.lastTime = err, time.Now()
	s.healthy, s.message = false, "failed, will be restarted: "+err.Error()
}

// holdBack keeps key from the workers: 10 s, doubled each time up to 10 min.
func (s *supervised) holdBack(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[key]
	h.times++
	h.until = time.Now().Add(min(10*s.group.opts.BackoffMin<<min(h.times-1, 10), 10*s.group.opts.BackoffMax))
	s.held[key] = h
}

func (s *supervised) heldBack(key string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.held[key]; ok {
		return time.Until(h.until)
	}
	return 0
}

func (s *supervised) release(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, key)
}
