package scheduling

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/profile"
)

// Config says what a Scheduler works with. Client and Informers are required.
type Config struct {
	Client kubernetes.Interface
	// Informers are the shared caches. Run starts what it needs of them.
	Informers informers.SharedInformerFactory
	// Profiles say how pods are placed; nil: profile.Default.
	Profiles *profile.Config
	// Binders is how many bindings are under way at once; default 32.
	Binders    int
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// Recorder receives the events in place of the API server (tests).
	Recorder record.EventRecorder
}

// Scheduler places pods while Run runs.
type Scheduler struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	profiles map[string]*engine.Profile // by schedulerName
	objects  *objects

	mu      sync.Mutex
	cluster *cluster.Cluster
	engine  *engine.Engine
	queue   *queue
	running bool
	last    time.Time // when the loop last came round

	wake chan struct{} // buffered: something may be ready
}

// New registers what it needs with the informers; nothing runs before Run.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Client == nil || cfg.Informers == nil {
		return nil, errors.New("scheduling: a client and informers are required")
	}
	if cfg.Profiles == nil {
		cfg.Profiles = profile.Default()
	}
	if cfg.Binders == 0 {
		cfg.Binders = 32
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	c, o := cluster.New(), newObjects(cfg.Informers)
	s := &Scheduler{
		cfg: cfg, log: cfg.Log.With("component", "scheduler"), profiles: map[string]*engine.Profile{},
		cluster: c, objects: o, engine: engine.New(c, o), queue: newQueue(cfg.Profiles.BackoffFirst, cfg.Profiles.BackoffMost, c.NominatedOn), wake: make(chan struct{}, 1),
	}
	for _, p := range cfg.Profiles.Profiles {
		s.profiles[p.Name] = p
	}
	var err error
	s.metrics, err = newMetrics(cfg.Registerer, s)
	return s, err
}

// Run places pods until ctx ends, and returns when no binding is under way any
// more. The error says what failed at the start.
func (s *Scheduler) Run(ctx context.Context) error {
	recorder := s.cfg.Recorder
	if recorder == nil {
		b := record.NewBroadcaster(record.WithContext(ctx))
		b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: s.cfg.Client.CoreV1().Events("")})
		defer b.Shutdown()
		recorder = b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: s.cfg.Profiles.Profiles[0].Name})
	}
	stop, err := s.watch(ctx)
	defer stop()
	if err != nil {
		return err
	}
	s.log.Info("scheduler runs", "names", slices.Sorted(maps.Keys(s.profiles)))
	s.setRunning(true)
	defer s.setRunning(false)
	p := &placer{Scheduler: s, recorder: recorder, slots: make(chan struct{}, s.cfg.Binders)}
	defer p.flight.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := p.placeReady(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := time.Second // the loop shows that it lives
		if !next.IsZero() {
			pause = min(pause, max(time.Until(next), 0))
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// Health says why the scheduler does not work, or nil.
func (s *Scheduler) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.running:
		return errors.New("not started: waits for its caches")
	case time.Since(s.last) > 30*time.Second:
		return fmt.Errorf("hangs: no decision and no rest since %v", s.last.Format(time.RFC3339))
	}
	return nil
}

func (s *Scheduler) setRunning(v bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.last = v, time.Now()
}

func (s *Scheduler) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
