package dataplane

import (
	"fmt"
	"slices"
	"time"
)

// State is how far a service got.
type State string

// The states of a service.
const (
	Pending State = "Pending" // a change waits to be written
	Done    State = "Done"    // the kernel holds the wanted version
	Error   State = "Error"   // the last attempt failed; it is retried
)

// Status is one service's state.
type Status struct {
	ID    ID
	State State
	Since time.Time // of the state; of a Pending or Error one: when the oldest unwritten change came
	Tries int       // failures in a row
	Err   error     // why State is Error
}

// Status lists every service known, in order of ID.
func (d *Dataplane) Status() []Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Status, 0, len(d.services))
	for id, r := range d.services {
		out = append(out, Status{ID: id, State: r.state(), Since: r.since, Tries: r.tries, Err: r.err})
	}
	slices.SortFunc(out, func(a, b Status) int { return a.ID.Compare(b.ID) })
	return out
}

func (r *record) state() State {
	switch {
	case r.err != nil:
		return Error
	case r.dirty:
		return Pending
	}
	return Done
}

// Healthy is nil while the kernel is in line with the API, or lags by less than Config.UnhealthyAfter; otherwise it
// says what is stuck.
func (d *Dataplane) Healthy() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.fullErr != nil && now.Sub(d.fullBad) > d.cfg.UnhealthyAfter {
		return fmt.Errorf("service rules (%s) cannot be written for %s: %w", d.backend.Name(), now.Sub(d.fullBad).Round(time.Second), d.fullErr)
	}
	for id, r := range d.services {
		if r.dirty && now.Sub(r.since) > d.cfg.UnhealthyAfter {
			if r.err != nil {
				return fmt.Errorf("service %s is not programmed for %s: %w", id, now.Sub(r.since).Round(time.Second), r.err)
			}
			return fmt.Errorf("service %s waits to be programmed for %s", id, now.Sub(r.since).Round(time.Second))
		}
	}
	return nil
}

// InSync says whether the first whole write has been done, nothing is waiting, and nothing is being written or
// cleaned up.
func (d *Dataplane) InSync() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.first || d.fullErr != nil || d.writing || !d.fullAt.After(time.Now()) {
		return false
	}
	for _, r := range d.services {
		if r.dirty {
			return false
		}
	}
	return true
}
