package garbagecollector

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

const (
	// rediscovery is how often discovery is asked without a reason; debounce is
	// how long after a reason, for CRDs come in crowds.
	rediscovery = 30 * time.Second
	debounce    = 500 * time.Millisecond
	// syncTimeout is when a resource that cannot be listed no longer holds up
	// the others.
	syncTimeout = 2 * time.Minute
)

// monitors watch every collectable resource and feed the graph.
type monitors struct {
	client    metadata.Interface
	discovery discovery.DiscoveryInterface
	graph     *graph
	enqueue   func([]job)
	log       *slog.Logger
	wake      chan struct{}
	wg        sync.WaitGroup

	mu    sync.Mutex
	kinds kinds
	all   map[schema.GroupVersionResource]*monitor
}

type monitor struct {
	// synced tells that the graph holds the first list, not only the cache.
	synced  cache.InformerSynced
	cancel  context.CancelFunc
	started time.Time
	warned  bool
}

func newMonitors(c metadata.Interface, d discovery.DiscoveryInterface, g *graph, enqueue func([]job), log *slog.Logger) *monitors {
	return &monitors{
		client: c, discovery: d, graph: g, enqueue: enqueue, log: log,
		wake: make(chan struct{}, 1),
		all:  map[schema.GroupVersionResource]*monitor{},
	}
}

// run follows discovery until ctx ends, and returns when all watches have ended.
func (m *monitors) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.wg.Wait()
	defer cancel()
	for {
		next := rediscovery
		if err := m.follow(ctx); err != nil {
			m.log.Warn("discovery failed, watching what was known before", "err", err)
			next = 2 * time.Second
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-m.wake:
			timer.Stop()
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(debounce):
			}
		}
	}
}

// rediscover asks for a look at discovery soon.
func (m *monitors) rediscover() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// follow starts and ends watches as discovery says.
func (m *monitors) follow(ctx context.Context) error {
	k, err := discover(m.discovery)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for gv := range k.failed {
		// What cannot be discovered now is not gone: keep what was known of it.
		for kind, r := range m.kinds.byKind {
			if kind.GroupVersion() == gv {
				k.byKind[kind] = r
			}
		}
		for name, r := range m.kinds.watched {
			if name.GroupVersion() == gv {
				k.watched[name] = r
			}
		}
	}
	m.kinds = k
	for name, r := range k.watched {
		if m.all[name] == nil {
			if err := m.start(ctx, r); err != nil {
				return err
			}
		}
	}
	for name, mon := range m.all {
		if _, ok := k.watched[name]; !ok {
			mon.cancel()
			delete(m.all, name)
			m.graph.drop(name)
			m.log.Info("resource is watched no longer", "resource", name.String())
		}
	}
	return nil
}

func (m *monitors) start(ctx context.Context, r resource) error {
	informer := metadatainformer.NewFilteredMetadataInformer(m.client, r.name, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	ctx, cancel := context.WithCancel(ctx)
	if err := informer.SetTransform(trim); err != nil {
		cancel()
		return fmt.Errorf("watch %s: %w", r.name, err)
	}
	put := func(o any) {
		meta, ok := o.(*metav1.PartialObjectMetadata)
		if !ok || ctx.Err() != nil {
			return
		}
		m.enqueue(m.graph.put(observed(meta, r)))
	}
	schemaChange := func() {
		if g := r.name.Group; g == "apiextensions.k8s.io" || g == "apiregistration.k8s.io" {
			m.rediscover()
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { put(o); schemaChange() },
		UpdateFunc: func(_, o any) { put(o); schemaChange() },
		DeleteFunc: func(o any) {
			if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if meta, ok := o.(*metav1.PartialObjectMetadata); ok && ctx.Err() == nil {
				m.enqueue(m.graph.remove(meta.UID))
			}
			schemaChange()
		},
	})
	if err != nil {
		cancel()
		return fmt.Errorf("listen to %s: %w", r.name, err)
	}
	m.all[r.name] = &monitor{synced: registration.HasSynced, cancel: cancel, started: time.Now()}
	m.wg.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// trim drops what the graph has no use for, before it is cached.
func trim(o any) (any, error) {
	if meta, ok := o.(*metav1.PartialObjectMetadata); ok {
		meta.Labels, meta.Annotations, meta.ManagedFields = nil, nil, nil
	}
	return o, nil
}

func observed(meta *metav1.PartialObjectMetadata, r resource) object {
	deleting := meta.DeletionTimestamp != nil
	return object{
		uid: meta.UID, kind: r.kind, resource: r.name, namespace: meta.Namespace, name: meta.Name,
		owners:     meta.OwnerReferences,
		deleting:   deleting,
		foreground: deleting && slices.Contains(meta.Finalizers, metav1.FinalizerDeleteDependents),
		orphan:     deleting && slices.Contains(meta.Finalizers, metav1.FinalizerOrphanDependents),
	}
}

// synced reports whether every resource has been listed, or has failed to be for
// too long.
func (m *monitors) synced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) == 0 {
		return false
	}
	for name, mon := range m.all {
		if mon.synced() {
			continue
		}
		if time.Since(mon.started) < syncTimeout {
			return false
		}
		if !mon.warned {
			mon.warned = true
			m.log.Warn("resource cannot be listed; its objects are not collected until it can", "resource", name.String())
		}
	}
	return true
}

// lookUp returns how the API serves a kind.
func (m *monitors) lookUp(kind schema.GroupVersionKind) (resource, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.kinds.byKind[kind]
	return r, ok
}
