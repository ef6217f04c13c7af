package scheduling

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Config says what a Scheduler works with. Client and Informers are required.
type Config struct {
	Client kubernetes.Interface
	// Informers are the shared caches. Run starts what it needs of them.
	Informers informers.SharedInformerFactory
	// Name is the schedulerName of the pods that are placed; default
	// default-scheduler.
	Name string
	// Binders is how many bindings are under way at once; default 32.
	Binders    int
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// Recorder receives the events in place of the API server (tests).
	Recorder record.EventRecorder
}

// Scheduler places pods while Run runs.
type Scheduler struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	cluster *cluster.Cluster
	queue   *queue
	turn    uint64
	running bool
	last    time.Time // when the loop last came round

	wake chan struct{} // buffered: something may be ready

	pods       cache.SharedIndexInformer
	nodes      cache.SharedIndexInformer
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	namespaces corelisters.NamespaceLister
	others     []cache.SharedIndexInformer
}

// New registers what it needs with the informers; nothing runs before Run.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Client == nil || cfg.Informers == nil {
		return nil, errors.New("scheduling: a client and informers are required")
	}
	if cfg.Name == "" {
		cfg.Name = corev1.DefaultSchedulerName
	}
	if cfg.Binders == 0 {
		cfg.Binders = 32
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	core := cfg.Informers.Core().V1()
	s := &Scheduler{
		cfg: cfg, log: cfg.Log.With("component", "scheduler"),
		cluster: cluster.New(), queue: newQueue(), wake: make(chan struct{}, 1),
		pods: core.Pods().Informer(), nodes: core.Nodes().Informer(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), namespaces: core.Namespaces().Lister(),
		others: []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), core.Namespaces().Informer()},
	}
	var err error
	s.metrics, err = newMetrics(cfg.Registerer, s.pendingCounts)
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
		recorder = b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: s.cfg.Name})
	}
	stop, err := s.watch(ctx)
	defer stop()
	if err != nil {
		return err
	}
	s.log.Info("scheduler runs", "name", s.cfg.Name)
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

func (s *Scheduler) pendingCounts() (active, backoff, unschedulable int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.counts()
}

func (s *Scheduler) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// view is the cluster as the loop sees it; its holder has the lock.
type view struct{ *Scheduler }

func (v view) Nodes() []*cluster.Node { return v.cluster.Nodes() }

func (v view) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	c, err := v.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil
	}
	return c
}

func (v view) Volume(name string) *corev1.PersistentVolume {
	pv, err := v.volumes.Get(name)
	if err != nil {
		return nil
	}
	return pv
}

func (v view) NamespaceLabels(name string) labels.Set {
	n, err := v.namespaces.Get(name)
	if err != nil {
		return nil
	}
	return n.Labels
}

var _ plugin.View = view{}
