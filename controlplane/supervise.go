package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tripod-cluster/tripod/controlplane/peer"
)

const (
	restartFirst = time.Second
	restartMost  = time.Minute
)

// duty is one task that the leader runs: it ends when its context does, and is
// started again, with a growing pause, when it fails or panics before that.
type duty struct {
	name string
	// run works until ctx ends. ready is to be called when it works.
	run func(ctx context.Context, ready func()) error

	mu       sync.Mutex
	healthy  bool
	restarts int
	last     error
}

var errPanic = errors.New("panic")

func (d *duty) supervise(ctx context.Context, log *slog.Logger) {
	pause := restartFirst
	for {
		started := time.Now()
		err := d.once(ctx)
		d.mu.Lock()
		d.healthy = false
		if ctx.Err() != nil {
			d.mu.Unlock()
			return
		}
		if err == nil {
			err = errors.New("ended by itself")
		}
		d.restarts++
		d.last = err
		d.mu.Unlock()
		if time.Since(started) > restartMost {
			pause = restartFirst
		}
		log.Error("a task of the leader failed and is started again; the others go on", "task", d.name, "error", err, "pause", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, restartMost)
	}
}

func (d *duty) once(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, r, debug.Stack())
		}
	}()
	return d.run(ctx, func() {
		d.mu.Lock()
		d.healthy = true
		d.mu.Unlock()
	})
}

func (d *duty) status() peer.DutyStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := peer.DutyStatus{Name: d.name, Healthy: d.healthy, Restarts: d.restarts}
	if d.last != nil {
		s.LastError = d.last.Error()
	}
	if !d.healthy {
		s.Message = "not running"
	}
	return s
}

// runAll supervises every duty until ctx ends, and returns when all have ended.
func runAll(ctx context.Context, log *slog.Logger, duties []*duty) {
	var wg sync.WaitGroup
	for _, d := range duties {
		wg.Go(func() { d.supervise(ctx, log) })
	}
	wg.Wait()
}
