package raftfsm

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// diskWatch watches the calls to the disk that are under way, and the space left.
// hashicorp/raft writes its log from its main loop: while such a call hangs, a leader
// neither commits nor steps down, but its heartbeats go on and keep others from
// electing. So heartbeats are withheld when a call takes longer than stall, and the
// process is ended when it takes longer than deadline.
type diskWatch struct {
	slow, stall, deadline time.Duration
	minFree               int64
	free                  func() (int64, error)
	log                   *slog.Logger
	fatal                 func(error)

	stalled atomic.Bool
	full    atomic.Bool
	freeNow atomic.Int64

	mu    sync.Mutex
	calls map[uint64]diskCall
	next  uint64
}

type diskCall struct {
	what   string
	began  time.Time
	warned bool
}

func newDiskWatch(c *Config, fatal func(error)) *diskWatch {
	w := &diskWatch{
		slow: c.DiskSlow, stall: c.DiskStall, deadline: c.DiskDeadline,
		minFree: c.MinFreeBytes, free: c.faults.free,
		log: c.Logger, fatal: fatal, calls: map[uint64]diskCall{},
	}
	if w.free == nil {
		dir := c.Dir
		w.free = func() (int64, error) { return freeBytes(dir) }
	}
	w.measure()
	return w
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("measure the free space of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// begin notes a call; the returned func notes its end.
func (w *diskWatch) begin(what string) (end func()) {
	w.mu.Lock()
	id := w.next
	w.next++
	w.calls[id] = diskCall{what: what, began: time.Now()}
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		c := w.calls[id]
		delete(w.calls, id)
		idle := len(w.calls) == 0
		w.mu.Unlock()
		if idle {
			w.stalled.Store(false)
		}
		if c.warned {
			w.log.Warn("the disk answered again", "call", c.what, "took", time.Since(c.began))
		}
	}
}

func (w *diskWatch) run(stop <-chan struct{}) {
	tick := time.NewTicker(max(min(w.stall/4, 250*time.Millisecond), 5*time.Millisecond))
	defer tick.Stop()
	space := time.NewTicker(time.Second)
	defer space.Stop()
	for {
		select {
		case <-stop:
			return
		case <-space.C:
			w.measure()
		case <-tick.C:
			w.check(time.Now())
		}
	}
}

func (w *diskWatch) check(now time.Time) {
	var dead *diskCall
	stalled := false
	w.mu.Lock()
	for id, c := range w.calls {
		took := now.Sub(c.began)
		if took > w.slow && !c.warned {
			c.warned = true
			w.calls[id] = c
			w.log.Warn("the disk is slow", "call", c.what, "waited", took)
		}
		if took > w.stall {
			stalled = true
		}
		if took > w.deadline {
			dead = &c
		}
	}
	if was := w.stalled.Swap(stalled); stalled && !was {
		w.log.Error("the disk hangs: heartbeats are withheld so that another peer is elected", "limit", w.stall)
	}
	w.mu.Unlock()
	if dead != nil {
		w.fatal(fmt.Errorf("the disk did not answer for %v (%s): this peer ends so that the others go on; check the disk and the kernel log, then start it again", w.deadline, dead.what))
	}
}

func (w *diskWatch) measure() {
	free, err := w.free()
	if err != nil {
		w.log.Warn("cannot measure free disk space", "error", err)
		return
	}
	w.freeNow.Store(free)
	full := free < w.minFree
	if was := w.full.Swap(full); full != was {
		if full {
			w.log.Error("disk space is running out: this peer accepts no writes while it leads; free some space", "free", free, "needed", w.minFree)
		} else {
			w.log.Info("disk space is back: writes are accepted again", "free", free)
		}
	}
}
