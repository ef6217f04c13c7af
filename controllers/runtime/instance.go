package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// PanicError is a panic that was caught in a controller.
type PanicError struct {
	Where string // "reconcile NAMESPACE/NAME", "event handler", "background loop"
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.Where, e.Value) }

// HangError is a reconcile that did not return after its context had ended.
type HangError struct {
	Key string
	For time.Duration
}

func (e *HangError) Error() string {
	return fmt.Sprintf("reconcile of %q hangs, running for %s", e.Key, e.For.Round(time.Millisecond))
}

// instance is one life of a controller, from its building to its failure or
// the end of the run.
type instance struct {
	sup   *supervised
	ctl   Controller
	queue workqueue.TypedRateLimitingInterface[string]
	log   *slog.Logger

	failed  chan error // the first failure
	workers sync.WaitGroup

	mu   sync.Mutex
	busy map[int]work
}

// work is what a worker does at the moment.
type work struct {
	key   string
	since time.Time
}

func newInstance(sup *supervised) (in *instance, err error) {
	in = &instance{
		sup: sup,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 5*time.Minute)),
		log:    sup.log,
		failed: make(chan error, 1),
		busy:   map[int]work{},
	}
	defer in.catch("construction", func(p *PanicError) {
		in.queue.ShutDown()
		in, err = nil, p
	})
	in.ctl, err = sup.build(in.queue)
	if err != nil {
		in.queue.ShutDown()
		return nil, fmt.Errorf("build controller %s: %w", sup.name, err)
	}
	if n := sup.group.opts.Workers[sup.name]; n > 0 {
		in.ctl.Workers = n
	}
	if in.ctl.Workers <= 0 {
		in.ctl.Workers = DefaultWorkers
	}
	if in.ctl.Deadline <= 0 {
		in.ctl.Deadline = DefaultDeadline
	}
	return in, nil
}

// catch turns a panic into a PanicError. It is to be deferred itself.
func (in *instance) catch(where string, then func(*PanicError)) {
	if r := recover(); r != nil {
		then(&PanicError{Where: where, Value: r, Stack: debug.Stack()})
	}
}

func (in *instance) fail(err error) {
	select {
	case in.failed <- err:
	default:
	}
}

// run works until ctx ends (nil) or the instance fails. On return its
// goroutines have ended, or, after StopGrace, have been handed to the group as
// strays.
func (in *instance) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	registrations, err := in.register()
	defer func() {
		for _, r := range registrations {
			// Fails only for an informer that never had the handler.
			_ = r.informer.RemoveEventHandler(r.registration)
		}
	}()
	if err != nil {
		in.queue.ShutDown()
		return err
	}
	for _, inf := range in.ctl.Private {
		in.workers.Go(func() { inf.RunWithContext(ctx) })
	}
	if !in.waitForCaches(ctx, registrations) {
		cancel()
		in.queue.ShutDown()
		in.sup.group.settle(in)
		return in.failure()
	}
	in.sup.setMessage("", true)
	if in.ctl.Reconcile != nil {
		for n := range in.ctl.Workers {
			in.workers.Go(func() { in.worker(ctx, n) })
		}
	}
	for _, loop := range in.ctl.Background {
		in.workers.Go(func() { in.background(ctx, loop) })
	}
	in.workers.Go(func() { in.watchdog(ctx) })

	select {
	case <-ctx.Done():
	case err = <-in.failed:
	}
	cancel()
	in.queue.ShutDown()
	in.sup.group.settle(in)
	if err == nil {
		err = in.failure()
	}
	return err
}

func (in *instance) failure() error {
	select {
	case err := <-in.failed:
		return err
	default:
		return nil
	}
}

type registration struct {
	informer     cache.SharedInformer
	registration cache.ResourceEventHandlerRegistration
}

func (in *instance) register() ([]registration, error) {
	var all []registration
	for _, s := range in.ctl.Sources {
		r, err := s.informer.AddEventHandler(guarded{in, s.handler})
		if err != nil {
			return all, fmt.Errorf("controller %s: listen to an informer: %w", in.sup.name, err)
		}
		all = append(all, registration{s.informer, r})
	}
	return all, nil
}

// guarded keeps a panic of an event handler away from the informer, whose
// goroutine it would end together with the process.
type guarded struct {
	in *instance
	h  cache.ResourceEventHandler
}

func (g guarded) OnAdd(o any, initial bool) {
	defer g.in.catch("event handler", func(p *PanicError) { g.in.fail(p) })
	g.h.OnAdd(o, initial)
}

func (g guarded) OnUpdate(o, n any) {
	defer g.in.catch("event handler", func(p *PanicError) { g.in.fail(p) })
	g.h.OnUpdate(o, n)
}

func (g guarded) OnDelete(o any) {
	defer g.in.catch("event handler", func(p *PanicError) { g.in.fail(p) })
	g.h.OnDelete(o)
}

// waitForCaches returns false when ctx ended or the instance failed first.
func (in *instance) waitForCaches(ctx context.Context, rs []registration) bool {
	ready := func() bool {
		for _, r := range rs {
			if !r.registration.HasSynced() {
				return false
			}
		}
		for _, inf := range in.ctl.Private {
			if !inf.HasSynced() {
				return false
			}
		}
		for _, s := range in.ctl.Synced {
			if !s() {
				return false
			}
		}
		return true
	}
	start := time.Now()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !ready() {
		if waited := time.Since(start); waited > 5*time.Second {
			in.sup.setMessage(fmt.Sprintf("waiting for its caches for %s; is the API server up?", waited.Round(time.Second)), false)
		}
		select {
		case <-ctx.Done():
			return false
		case err := <-in.failed:
			in.fail(err)
			return false
		case <-ticker.C:
		}
	}
	return true
}

func (in *instance) background(ctx context.Context, loop func(context.Context) error) {
	defer in.catch("background loop", func(p *PanicError) { in.fail(p) })
	err := loop(ctx)
	if ctx.Err() == nil {
		if err == nil {
			err = errors.New("a background loop ended")
		}
		in.fail(err)
	}
}

func (in *instance) worker(ctx context.Context, n int) {
	for {
		key, shutdown := in.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() != nil {
			in.queue.Done(key)
			return
		}
		if wait := in.sup.heldBack(key); wait > 0 {
			in.queue.AddAfter(key, wait)
			in.queue.Done(key)
			continue
		}
		in.process(ctx, n, key)
	}
}

func (in *instance) process(ctx context.Context, n int, key string) {
	start := time.Now()
	in.mu.Lock()
	in.busy[n] = work{key, start}
	in.mu.Unlock()
	rctx, cancel := context.WithTimeout(ctx, in.ctl.Deadline)
	defer func() {
		cancel()
		in.mu.Lock()
		delete(in.busy, n)
		in.mu.Unlock()
		in.queue.Done(key)
	}()
	defer in.catch("reconcile "+key, func(p *PanicError) {
		in.sup.holdBack(key)
		in.fail(p)
	})

	after, err := in.ctl.Reconcile(rctx, key)

	m := in.sup.group.metrics
	m.duration.WithLabelValues(in.sup.name).Observe(time.Since(start).Seconds())
	if ctx.Err() != nil {
		return // an ended run says nothing about the object
	}
	in.sup.release(key)
	switch {
	case err != nil:
		if rctx.Err() != nil {
			m.timeouts.WithLabelValues(in.sup.name).Inc()
			err = fmt.Errorf("reconcile of %q took longer than %s: %w", key, in.ctl.Deadline, err)
		}
		m.errors.WithLabelValues(in.sup.name).Inc()
		if isSilent(err) {
			in.log.Debug("reconcile retried", "key", key, "err", err)
		} else {
			in.sup.setError(err)
			in.log.Warn("reconcile failed, will be retried", "key", key, "err", err, "failures", in.queue.NumRequeues(key)+1)
		}
		in.queue.AddRateLimited(key)
	case after > 0:
		in.queue.Forget(key)
		in.queue.AddAfter(key, after)
	default:
		in.queue.Forget(key)
	}
}

// watchdog fails the instance when a reconcile goes on after its deadline has
// ended its context.
func (in *instance) watchdog(ctx context.Context) {
	limit := in.ctl.Deadline + in.sup.group.opts.HangGrace
	ticker := time.NewTicker(max(limit/20, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		in.mu.Lock()
		for _, w := range in.busy {
			if d := time.Since(w.since); d > limit {
				in.sup.holdBack(w.key)
				in.fail(&HangError{Key: w.key, For: d})
			}
		}
		in.mu.Unlock()
	}
}
