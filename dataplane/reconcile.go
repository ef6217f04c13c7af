package dataplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// record is what is wanted of one service and how far it got. Guarded by Dataplane.mu.
type record struct {
	want     *Service // nil: to be removed
	done     *Service // what the kernel holds, as far as we know
	dirty    bool
	since    time.Time // when the state was entered, or when the oldest unwritten change was queued
	notUntil time.Time // not to be tried before
	tries    int       // failures in a row
	err      error
}

func (r *record) queue(now time.Time) {
	if !r.dirty {
		r.dirty, r.since = true, now
	}
	r.tries, r.notUntil = 0, time.Time{} // a new version deserves a fresh start
}

func (r *record) succeed(now time.Time, svc *Service) {
	r.done, r.err, r.tries, r.notUntil = svc, nil, 0, time.Time{}
	if r.want == svc {
		r.dirty, r.since = false, now
	}
}

func (r *record) fail(now time.Time, err error, wait time.Duration) {
	r.err, r.dirty, r.notUntil = err, true, now.Add(wait)
	r.tries++
}

// step does what is due and returns how long nothing will be.
func (d *Dataplane) step(ctx context.Context) time.Duration {
	now := time.Now()
	d.mu.Lock()
	full := !d.fullAt.After(now)
	broken := d.fullErr != nil
	d.mu.Unlock()
	switch {
	case full:
		d.full(ctx)
	case !broken: // else what the kernel holds is not known: wait for the verification
		d.partial(ctx, now)
	}
	next := d.nextDue(time.Now())
	if m, ok := d.current().(Maintainer); ok {
		wait, err := m.Maintain(ctx)
		if err != nil {
			d.metrics.errors.Inc()
			d.log.Warn("dataplane upkeep failed, will verify everything", "mode", d.Mode(), "err", err)
			d.failFull(time.Now(), err)
			next = d.nextDue(time.Now())
		} else if wait > 0 {
			next = min(next, wait)
		}
	}
	return max(next, time.Millisecond)
}

// nextDue is the time from now to the next verification or retry.
func (d *Dataplane) nextDue(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.fullAt.Sub(now)
	if d.fullErr != nil {
		return max(next, 0)
	}
	for _, r := range d.services {
		if r.dirty {
			next = min(next, r.notUntil.Sub(now))
		}
	}
	return max(next, 0)
}

// full makes the kernel hold exactly the wanted services.
func (d *Dataplane) full(ctx context.Context) {
	start := time.Now()
	d.mu.Lock()
	b := d.backend
	all, gone := d.wanted()
	d.mu.Unlock()

	err := b.Sync(ctx, all)
	d.metrics.observe("full", start)
	if ctx.Err() != nil {
		return
	}
	var perService ServiceErrors
	if err != nil && !errors.As(err, &perService) {
		d.metrics.errors.Inc()
		d.log.Warn("dataplane sync failed, will retry", "mode", b.Name(), "services", len(all), "err", err)
		d.failFull(time.Now(), err)
		return
	}
	d.mu.Lock()
	d.fullErr, d.fullBad, d.fullTry = nil, time.Time{}, 0
	d.fullAt = time.Now().Add(d.cfg.ResyncInterval)
	stale := d.cfg.Stale
	d.cfg.Stale = nil
	firstTime := !d.first
	d.first = true
	d.mu.Unlock()
	flows := d.settle(all, gone, perService)
	if firstTime { // flows that were opened while nobody looked
		flows = udpOnly(all)
	}
	d.cleanFlows(ctx, flows)
	if firstTime {
		d.log.Info("dataplane in sync", "mode", b.Name(), "services", len(all), "took", time.Since(start).Round(time.Millisecond))
	}
	for _, s := range stale {
		if err := s.Cleanup(ctx); err != nil {
			d.metrics.errors.Inc()
			d.log.Warn("cleaning up after another dataplane mode failed; restart the daemon to try again", "mode", s.Name(), "err", err)
		}
		if err := s.Close(); err != nil {
			d.log.Debug("closing dataplane backend", "mode", s.Name(), "err", err)
		}
	}
}

// wanted lists the wanted services in order of ID, and the IDs to be removed. Called with mu held.
func (d *Dataplane) wanted() (all []*Service, gone []ID) {
	for id, r := range d.services {
		if r.want != nil {
			all = append(all, r.want)
		} else {
			gone = append(gone, id)
		}
	}
	slices.SortFunc(all, func(a, b *Service) int { return a.ID.Compare(b.ID) })
	slices.SortFunc(gone, ID.Compare)
	return all, gone
}

func (d *Dataplane) failFull(now time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fullErr = err
	if d.fullTry == 0 {
		d.fullBad = now
	}
	d.fullAt = now.Add(d.backoff(d.fullTry))
	d.fullTry++
}

func (d *Dataplane) backoff(tries int) time.Duration {
	w := d.cfg.RetryMin << min(tries, 20)
	if w <= 0 || w > d.cfg.RetryMax {
		return d.cfg.RetryMax
	}
	return w
}

// partial writes the services that changed.
func (d *Dataplane) partial(ctx context.Context, now time.Time) {
	var set []*Service
	var gone []ID
	d.mu.Lock()
	b := d.backend
	for id, r := range d.services {
		switch {
		case !r.dirty || r.notUntil.After(now):
		case r.want == nil:
			gone = append(gone, id)
		case r.done != nil && r.done.Equal(r.want) && r.err == nil:
			r.succeed(now, r.want) // changed and changed back
		default:
			set = append(set, r.want)
		}
	}
	d.mu.Unlock()
	if len(set)+len(gone) == 0 {
		return
	}
	slices.SortFunc(set, func(a, b *Service) int { return a.ID.Compare(b.ID) })
	slices.SortFunc(gone, ID.Compare)

	start := time.Now()
	var perService ServiceErrors
	err := collect(&perService, func() error {
		if len(gone) == 0 {
			return nil
		}
		return b.Delete(ctx, gone) // first: addresses and ports may move to another service
	})
	if err == nil && len(set) > 0 {
		err = collect(&perService, func() error { return b.Update(ctx, set) })
	}
	d.metrics.observe("partial", start)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		d.metrics.errors.Inc()
		d.log.Warn("dataplane update failed, will verify everything", "mode", b.Name(), "services", len(set), "removed", len(gone), "err", err)
		d.failFull(time.Now(), err)
		d.mu.Lock()
		for _, s := range set {
			if r := d.services[s.ID]; r != nil {
				r.fail(time.Now(), err, d.cfg.RetryMax)
			}
		}
		d.mu.Unlock()
		return
	}
	d.cleanFlows(ctx, d.settle(set, gone, perService))
}

// collect runs f and moves its per-service errors into into.
func collect(into *ServiceErrors, f func() error) error {
	err := f()
	var per ServiceErrors
	if !errors.As(err, &per) {
		return err
	}
	if *into == nil {
		*into = ServiceErrors{}
	}
	for id, e := range per {
		(*into)[id] = e
	}
	return nil
}

// settle records what was written and what failed, and returns the UDP services whose flows need cleaning.
func (d *Dataplane) settle(set []*Service, gone []ID, failed ServiceErrors) (stale []*Service) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range set {
		r := d.services[s.ID]
		if r == nil {
			continue
		}
		if err := failed[s.ID]; err != nil {
			r.fail(now, err, d.backoff(r.tries))
			d.metrics.errors.Inc()
			d.log.Warn("service not programmed, will retry", "service", s.ID.String(), "err", err)
			continue
		}
		stale = append(stale, staleFlows(r.done, s)...)
		r.succeed(now, s)
	}
	for _, id := range gone {
		r := d.services[id]
		if r == nil {
			continue
		}
		if err := failed[id]; err != nil {
			r.fail(now, err, d.backoff(r.tries))
			d.metrics.errors.Inc()
			continue
		}
		stale = append(stale, staleFlows(r.done, nil)...)
		if r.want == nil {
			delete(d.services, id)
		} else {
			r.done = nil // came back meanwhile
		}
	}
	d.synced = now
	d.metrics.synced.SetToCurrentTime()
	return stale
}

// switchTo is SetBackend's work, done on Run's goroutine. Two backends of one mode (other settings) own the same
// objects in the kernel: then there is nothing to clean up.
func (d *Dataplane) switchTo(ctx context.Context, to Backend) error {
	start := time.Now()
	d.mu.Lock()
	from := d.backend
	all, gone := d.wanted()
	d.mu.Unlock()

	err := to.Sync(ctx, all)
	var perService ServiceErrors
	if err != nil && !errors.As(err, &perService) {
		err = fmt.Errorf("switching service rules from %s to %s: %w; %s stays in use", from.Name(), to.Name(), err, from.Name())
		if from.Name() != to.Name() {
			err = errors.Join(err, to.Cleanup(ctx))
		}
		d.mu.Lock()
		d.fullAt = time.Now() // it may have written a part
		d.mu.Unlock()
		return errors.Join(err, to.Close())
	}
	d.mu.Lock()
	d.backend = to
	d.mu.Unlock()
	d.settle(all, gone, perService)
	if from.Name() == to.Name() {
		if err := from.Close(); err != nil {
			d.log.Debug("closing dataplane backend", "mode", from.Name(), "err", err)
		}
	} else if err := from.Cleanup(ctx); err != nil {
		d.metrics.errors.Inc()
		d.log.Warn("cleaning up after the old dataplane mode failed; it is tried again with the next verification", "mode", from.Name(), "err", err)
		d.mu.Lock()
		d.cfg.Stale = append(d.cfg.Stale, from)
		d.fullAt = time.Now().Add(d.cfg.RetryMin)
		d.mu.Unlock()
	} else if err := from.Close(); err != nil {
		d.log.Debug("closing dataplane backend", "mode", from.Name(), "err", err)
	}
	// What the old mode translated would keep going where it went; the new mode decides anew.
	d.cleanFlows(ctx, udpOnly(all))
	d.log.Info("dataplane mode switched", "from", from.Name(), "mode", to.Name(), "services", len(all), "took", time.Since(start).Round(time.Millisecond))
	return nil
}
