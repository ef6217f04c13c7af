package backup

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/store"
)

// Local is the name of the directory among the destinations, in status and metrics.
const Local = "directory"

const (
	// lookEvery is how often the schedule is looked at.
	lookEvery = 15 * time.Second
	// retryAfter is how long after a failure the next attempt comes, or one interval
	// if that is shorter.
	retryAfter = 5 * time.Minute
	// uploadFor bounds one copy to another machine.
	uploadFor = 30 * time.Minute
)

// Config says what a Schedule does. All fields but Destinations, Log and Registerer
// are required.
type Config struct {
	Dir      string
	Interval time.Duration // 0 takes none by itself
	Keep     int           // of the schedule, at each place
	Store    *store.Store
	// Origin says where the snapshots come from; its Taken is set here.
	Origin func() etcddb.Origin
	// Ready tells whether the local state is worth a snapshot: it has caught up.
	Ready func() bool
	// Uploads tells whether this peer copies to the destinations.
	Uploads      func() bool
	Destinations []Destination
	Log          *slog.Logger
	Registerer   prometheus.Registerer
}

// PlaceStatus is how the snapshots at one place are.
type PlaceStatus struct {
	Place string `json:"place"` // "directory", "s3", "ssh"
	// Newest is when the newest one was taken, or for another machine, the last that
	// this peer copied there; zero when there is none.
	Newest   time.Time `json:"newest,omitzero"`
	Revision int64     `json:"revision,omitempty"`
	Count    int       `json:"count,omitempty"`
	// Error is why the last attempt failed; empty when it did not.
	Error string `json:"error,omitempty"`
	// Late says that the newest is older than two intervals: see to it.
	Late bool `json:"late,omitempty"`
}

// Schedule takes snapshots.
type Schedule struct {
	cfg     Config
	began   time.Time
	metrics metrics

	saving sync.Mutex // held while a snapshot is written
	mu     sync.Mutex
	failed time.Time // the last attempt's failure; zero when it succeeded
	places map[string]*PlaceStatus
}

type metrics struct {
	last, bytes *prometheus.GaugeVec
	took        *prometheus.GaugeVec
	failures    *prometheus.CounterVec
}

// New returns a schedule that does nothing until Run.
func New(c Config) (*Schedule, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Log = c.Log.With("component", "backup")
	label := []string{"place"}
	s := &Schedule{cfg: c, began: time.Now(), places: map[string]*PlaceStatus{Local: {Place: Local}}, metrics: metrics{
		last:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "controld_snapshot_last_success_timestamp_seconds", Help: "When the last snapshot was stored at a place, in Unix time."}, label),
		bytes:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "controld_snapshot_size_bytes", Help: "Size of the last snapshot that was stored at a place."}, label),
		took:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "controld_snapshot_duration_seconds", Help: "How long storing the last snapshot at a place took."}, label),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "controld_snapshot_failures_total", Help: "Snapshots that could not be stored at a place."}, label),
	}}
	for _, d := range c.Destinations {
		s.places[d.Name()] = &PlaceStatus{Place: d.Name()}
	}
	for place := range s.places {
		s.metrics.failures.WithLabelValues(place)
	}
	if c.Registerer != nil {
		for _, m := range []prometheus.Collector{s.metrics.last, s.metrics.bytes, s.metrics.took, s.metrics.failures} {
			if err := c.Registerer.Register(m); err != nil {
				return nil, fmt.Errorf("register the metrics of snapshots: %w", err)
			}
		}
	}
	return s, nil
}

// Run takes snapshots until ctx ends. The first comes as soon as Ready says so, unless
// the directory has one that is young enough.
func (s *Schedule) Run(ctx context.Context) error {
	if s.cfg.Interval <= 0 {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		if s.cfg.Ready() && s.due(time.Now()) {
			s.once(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// due tells whether the next one is to be taken at now.
func (s *Schedule) due(now time.Time) bool {
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if !failed.IsZero() && now.Sub(failed) < min(retryAfter, s.cfg.Interval) {
		return false
	}
	all, err := List(s.cfg.Dir)
	if err != nil {
		return true // taking one will say what is wrong
	}
	for _, f := range all {
		// One of the future was named by a clock that was wrong: it counts for nothing.
		if f.Kind == Auto && !f.Taken.After(now) {
			return now.Sub(f.Taken) >= s.cfg.Interval
		}
	}
	return true
}

// once takes one and copies it.
func (s *Schedule) once(ctx context.Context) {
	f, err := s.Save(Auto)
	if err != nil {
		s.cfg.Log.Error("a snapshot could not be taken", "error", err)
		return
	}
	if err := prune(s.cfg.Dir, s.cfg.Keep); err != nil {
		s.cfg.Log.Warn("old snapshots could not be deleted", "error", err)
	}
	if !s.cfg.Uploads() {
		return
	}
	var wg sync.WaitGroup
	for _, d := range s.cfg.Destinations {
		wg.Go(func() {
			if err := s.upload(ctx, d, f); err != nil && ctx.Err() == nil {
				s.cfg.Log.Error("a snapshot could not be copied", "place", d.Name(), "error", err)
			}
		})
	}
	wg.Wait()
}

// Save takes a snapshot now and returns it; see Save of the package for errors.
func (s *Schedule) Save(kind Kind) (File, error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	began := time.Now()
	o := s.cfg.Origin()
	o.Taken = began.UTC().Truncate(time.Second)
	f, err := Save(s.cfg.Dir, kind, s.cfg.Store, o)
	s.note(Local, f, began, err)
	if err == nil {
		s.cfg.Log.Info("snapshot taken", "name", f.Name, "bytes", f.Bytes, "took", time.Since(began))
	}
	return f, err
}

func (s *Schedule) upload(ctx context.Context, d Destination, f File) error {
	ctx, cancel := context.WithTimeout(ctx, uploadFor)
	defer cancel()
	began := time.Now()
	err := d.Put(ctx, filepath.Join(s.cfg.Dir, f.Name))
	if err == nil {
		err = pruneAt(ctx, d, s.cfg.Keep)
	}
	s.note(d.Name(), f, began, err)
	return err
}

// note remembers how an attempt ended.
func (s *Schedule) note(place string, f File, began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.places[place]
	if place == Local {
		s.failed = time.Time{}
		if err != nil {
			s.failed = time.Now()
		}
	}
	p.Error = ""
	if err != nil {
		p.Error = err.Error()
		s.metrics.failures.WithLabelValues(place).Inc()
		return
	}
	p.Newest, p.Revision = f.Taken, f.Revision
	s.metrics.last.WithLabelValues(place).Set(float64(f.Taken.Unix()))
	s.metrics.bytes.WithLabelValues(place).Set(float64(f.Bytes))
	s.metrics.took.WithLabelValues(place).Set(time.Since(began).Seconds())
}

// Status returns how the snapshots are, the directory first.
func (s *Schedule) Status() []PlaceStatus {
	now := time.Now()
	all, err := List(s.cfg.Dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	local := *s.places[Local]
	local.Count = len(all)
	if err != nil {
		local.Error = err.Error()
	}
	if len(all) > 0 {
		local.Newest, local.Revision = all[0].Taken, all[0].Revision
	}
	// Before a peer has run for long, nobody can be late but it.
	late := func(p PlaceStatus) bool {
		since := p.Newest
		if since.IsZero() || since.Before(s.began) {
			since = s.began
		}
		return s.cfg.Interval > 0 && now.Sub(since) > 2*s.cfg.Interval+retryAfter
	}
	local.Late = late(local)
	out := []PlaceStatus{local}
	for _, d := range s.cfg.Destinations {
		p := *s.places[d.Name()]
		// Another peer may have led until now: only what failed here is known for sure.
		p.Late = s.cfg.Uploads() && p.Error != "" && late(p)
		out = append(out, p)
	}
	return out
}

// Problem says what an operator should see to; nil when all is well.
func (p PlaceStatus) Problem() error {
	switch {
	case p.Error != "":
		return fmt.Errorf("the last snapshot was not stored (%s): %s", p.Place, p.Error)
	case p.Late && p.Newest.IsZero():
		return fmt.Errorf("there is no snapshot (%s): see `journalctl -u controld`", p.Place)
	case p.Late:
		return fmt.Errorf("the newest snapshot (%s) is of %s: see `journalctl -u controld`", p.Place, p.Newest.Format(time.RFC3339))
	}
	return nil
}
