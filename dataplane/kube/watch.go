package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/tripod-cluster/tripod/dataplane"
)

// Config is what Watch needs. Client and NodeName are required.
type Config struct {
	Client   kubernetes.Interface
	NodeName string
	// Zone gives the node's topology.kubernetes.io/zone; nil or "": unknown, zone hints are not used.
	Zone   func() string
	Logger *slog.Logger // default: slog.Default()
}

// Sink takes what Watch finds; *dataplane.Dataplane is one.
type Sink interface {
	Set(*dataplane.Service)
	Remove(dataplane.ID)
	Ready()
	Healthy() error
}

const byService = "service"

type watcher struct {
	cfg    Config
	sink   Sink
	log    *slog.Logger
	svcs   cache.SharedIndexInformer
	eps    cache.SharedIndexInformer
	health *healthServers

	mu    sync.Mutex
	dirty map[string]struct{} // namespace/name
	wake  chan struct{}

	programmed map[string][]dataplane.ID // by namespace/name; the worker's own
}

// Watch keeps sink in line with the API until ctx ends, and returns when all its goroutines have stopped. An API
// that cannot be reached is no error: what is programmed stays, and the watch resumes.
func Watch(ctx context.Context, cfg Config, sink Sink) error {
	if cfg.Client == nil || cfg.NodeName == "" {
		return errors.New("watch services: client and node name are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	f := informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = "!" + proxyNameLabel + ",!" + corev1.IsHeadlessService
		}),
		informers.WithTransform(slim))
	w := &watcher{
		cfg: cfg, sink: sink, log: cfg.Logger,
		svcs: f.Core().V1().Services().Informer(), eps: f.Discovery().V1().EndpointSlices().Informer(),
		health: newHealthServers(sink, cfg.Logger),
		dirty:  map[string]struct{}{}, wake: make(chan struct{}, 1), programmed: map[string][]dataplane.ID{},
	}
	defer w.health.close()
	if err := w.eps.AddIndexers(cache.Indexers{byService: indexByService}); err != nil {
		return fmt.Errorf("watch endpoint slices: %w", err)
	}
	for inf, key := range map[cache.SharedIndexInformer]func(any) string{w.svcs: serviceKey, w.eps: sliceKey} {
		_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { w.touch(key(o)) },
			UpdateFunc: func(old, o any) {
				w.touch(key(old)) // a slice's service label may have changed
				w.touch(key(o))
			},
			DeleteFunc: func(o any) { w.touch(key(o)) },
		})
		if err != nil {
			return fmt.Errorf("watch services: %w", err)
		}
	}
	f.Start(ctx.Done())
	defer f.Shutdown()
	started := time.Now()
	if !cache.WaitForCacheSync(ctx.Done(), w.svcs.HasSynced, w.eps.HasSynced) {
		return nil
	}
	for _, o := range w.svcs.GetStore().List() {
		w.touch(serviceKey(o))
	}
	w.drain()
	sink.Ready()
	w.log.Info("services known", "services", len(w.programmed), "took", time.Since(started).Round(time.Millisecond))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
			w.drain()
		}
	}
}

// slim drops what is never read, to keep thousands of objects small.
func slim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

func (w *watcher) touch(key string) {
	if key == "" {
		return
	}
	w.mu.Lock()
	w.dirty[key] = struct{}{}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) drain() {
	w.mu.Lock()
	keys := w.dirty
	w.dirty = map[string]struct{}{}
	w.mu.Unlock()
	for k := range keys {
		w.reconcile(k)
	}
}

func (w *watcher) reconcile(key string) {
	here := place{node: w.cfg.NodeName}
	if w.cfg.Zone != nil {
		here.zone = w.cfg.Zone()
	}
	var want []*dataplane.Service
	var svc *corev1.Service
	if o, ok, _ := w.svcs.GetStore().GetByKey(key); ok {
		svc = o.(*corev1.Service)
		var eps []*discoveryv1.EndpointSlice
		objs, err := w.eps.GetIndexer().ByIndex(byService, key)
		if err != nil {
			w.log.Error("endpoint slices cannot be looked up", "service", key, "err", err)
			return
		}
		for _, o := range objs {
			eps = append(eps, o.(*discoveryv1.EndpointSlice))
		}
		want = translate(svc, eps, here)
	}
	keep := map[dataplane.ID]bool{}
	ids := make([]dataplane.ID, 0, len(want))
	for _, s := range want {
		keep[s.ID] = true
		ids = append(ids, s.ID)
	}
	for _, id := range w.programmed[key] { // removed before added: ports and addresses may move
		if !keep[id] {
			w.sink.Remove(id)
		}
	}
	for _, s := range want {
		w.sink.Set(s)
	}
	if len(ids) == 0 {
		delete(w.programmed, key)
	} else {
		w.programmed[key] = ids
	}
	w.health.update(key, want)
}

func unwrap(o any) any {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return d.Obj
	}
	return o
}

func serviceKey(o any) string {
	s, ok := unwrap(o).(*corev1.Service)
	if !ok {
		return ""
	}
	return s.Namespace + "/" + s.Name
}

func sliceKey(o any) string {
	s, ok := unwrap(o).(*discoveryv1.EndpointSlice)
	if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
		return ""
	}
	return s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
}

func indexByService(o any) ([]string, error) {
	if k := sliceKey(o); k != "" {
		return []string{k}, nil
	}
	return nil, nil
}
