package crilog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollEvery is how often a followed file is looked at where the kernel sends no
// word of changes.
const (
	pollEvery   = 200 * time.Millisecond
	recheckGone = time.Second
)

// Options says which part of a log is wanted.
type Options struct {
	Tail       int64     // last lines only; negative: all
	Limit      int64     // bytes written at most; negative: no limit
	Since      time.Time // entries at or after it; zero: all
	Timestamps bool      // put each entry's time before its line
	Follow     bool      // go on until the container has ended or ctx ends
}

// Copy writes the log at path to stdout and stderr (nil: that stream is not
// wanted), without the CRI framing. alive tells a follower whether the container
// may still write; it is called when the end of the file is reached. flush, if
// not nil, is called whenever Copy is about to wait. Copy returns nil at the end
// of the log, when the limit is reached and when ctx ends.
func Copy(ctx context.Context, path string, o Options, alive func(context.Context) bool, stdout, stderr io.Writer, flush func()) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	c := &copier{path: path, o: o, alive: alive, flush: flush, left: o.Limit, f: f, out: map[Stream]*stream{}}
	defer func() { c.f.Close() }()
	if stdout != nil {
		c.out[Stdout] = &stream{w: stdout, fresh: true}
	}
	if stderr != nil {
		c.out[Stderr] = &stream{w: stderr, fresh: true}
	}
	if flush == nil {
		c.flush = func() {}
	}
	if o.Tail >= 0 {
		st, err := f.Stat()
		if err != nil {
			return fmt.Errorf("container log: %w", err)
		}
		off, err := tailOffset(f, st.Size(), o.Tail)
		if err != nil {
			return err
		}
		if _, err := f.Seek(off, io.SeekStart); err != nil {
			return fmt.Errorf("container log: %w", err)
		}
	}
	err = c.run(ctx)
	c.flush()
	if errors.Is(err, errLimit) || (err != nil && ctx.Err() != nil) {
		return nil
	}
	return err
}

var errLimit = errors.New("byte limit reached")

type stream struct {
	w     io.Writer
	fresh bool // the next entry begins a line
}

type copier struct {
	path  string
	o     Options
	alive func(context.Context) bool
	flush func()
	left  int64
	f     *os.File
	out   map[Stream]*stream
}

func (c *copier) run(ctx context.Context) error {
	r := bufio.NewReaderSize(c.f, 64<<10)
	var pending []byte // an entry whose line feed is not written yet
	var waiter *waiter
	defer func() { waiter.close() }()
	ended := false // alive said no before this pass over the file
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			pending = append(pending, line...)
			continue
		}
		if err == nil {
			if len(pending) > 0 {
				line = append(pending, line...)
				pending = nil
			}
			if err := c.entry(bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, io.EOF) {
			return fmt.Errorf("read container log: %w", err)
		}
		pending = append(pending, line...)
		if !c.o.Follow {
			if len(pending) > 0 {
				return c.entry(pending)
			}
			return nil
		}
		next, err := c.rotated()
		if err != nil {
			return err
		}
		if next != nil {
			// What was written to the old file between its end and the rename.
			rest, err := io.ReadAll(c.f)
			if err != nil {
				next.Close()
				return fmt.Errorf("read container log: %w", err)
			}
			for l := range bytes.Lines(append(pending, rest...)) {
				if err := c.entry(bytes.TrimSuffix(l, []byte{'\n'})); err != nil {
					next.Close()
					return err
				}
			}
			pending = nil
			c.f.Close()
			c.f = next
			r.Reset(next)
			continue
		}
		if ended {
			if len(pending) > 0 {
				return c.entry(pending)
			}
			return nil
		}
		if c.alive != nil && !c.alive(ctx) {
			ended = true // one more pass: it may have written before it ended
			continue
		}
		c.flush()
		if waiter == nil {
			waiter = newWaiter(c.path)
		}
		if err := waiter.wait(ctx); err != nil {
			return err
		}
	}
}

// rotated opens the file that has taken the path, if that is not the open one.
func (c *copier) rotated() (*os.File, error) {
	cur, err := c.f.Stat()
	if err != nil {
		return nil, fmt.Errorf("container log: %w", err)
	}
	now, err := os.Stat(c.path)
	if err != nil || os.SameFile(cur, now) {
		return nil, nil // between rename and reopen, or removed with its pod: what is open goes on
	}
	f, err := os.Open(c.path)
	if err != nil {
		return nil, nil
	}
	return f, nil
}

// entry writes one entry if it is wanted.
func (c *copier) entry(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	e, err := Parse(line)
	if err != nil {
		return nil // a torn line after a power cut must not hide the rest
	}
	s := c.out[e.Stream]
	if s == nil || (!c.o.Since.IsZero() && e.Time.Before(c.o.Since)) {
		return nil
	}
	buf := make([]byte, 0, len(e.RawTime)+len(e.Content)+2)
	if s.fresh && c.o.Timestamps {
		buf = append(append(buf, e.RawTime...), ' ')
	}
	buf = append(buf, e.Content...)
	if !e.Partial {
		buf = append(buf, '\n')
	}
	s.fresh = !e.Partial
	limited := c.o.Limit >= 0
	if limited && int64(len(buf)) > c.left {
		buf = buf[:c.left]
	}
	if len(buf) > 0 {
		if _, err := s.w.Write(buf); err != nil {
			return fmt.Errorf("send container log: %w", err)
		}
	}
	if limited {
		if c.left -= int64(len(buf)); c.left <= 0 {
			return errLimit
		}
	}
	return nil
}

// waiter waits for a change in the log's directory: writes and rotation.
type waiter struct {
	w *fsnotify.Watcher // nil: only the clock
	t *time.Ticker
}

func newWaiter(path string) *waiter {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(filepath.Dir(path)); err != nil {
			w.Close()
		}
	}
	if err != nil { // inotify instances are a limited, shared resource
		return &waiter{t: time.NewTicker(pollEvery)}
	}
	return &waiter{w: w, t: time.NewTicker(recheckGone)}
}

func (w *waiter) close() {
	if w == nil {
		return
	}
	w.t.Stop()
	if w.w != nil {
		w.w.Close()
	}
}

func (w *waiter) wait(ctx context.Context) error {
	var events chan fsnotify.Event
	var errs chan error
	if w.w != nil {
		events, errs = w.w.Events, w.w.Errors
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.t.C:
	case <-events:
	case <-errs: // an overflow: look again
	}
	return nil
}
