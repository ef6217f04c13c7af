package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/nodeagent/cgroups"
	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/env"
	"github.com/tripod-cluster/tripod/nodeagent/images"
	"github.com/tripod-cluster/tripod/nodeagent/node"
	"github.com/tripod-cluster/tripod/nodeagent/pods"
	"github.com/tripod-cluster/tripod/nodeagent/probes"
	"github.com/tripod-cluster/tripod/nodeagent/status"
	"github.com/tripod-cluster/tripod/nodeagent/volumes"
)

// stallAfter is how long the sync loop may take for one turn before Healthy
// reports it: the timeout of its CRI calls and a margin.
const stallAfter = time.Minute

// Agent runs the pods of one node. Make it with New, run it once.
type Agent struct {
	cfg      Config
	runtime  *cri.Client
	cgroups  *cgroups.Manager
	volumes  *volumes.Manager
	probes   *probes.Manager
	status   *status.Manager
	node     *node.Manager
	importer *images.Importer
	objects  *objects
	pods     *podCache
	events   record.EventRecorder
	apparmor bool
	metrics  *metrics

	services       corelisters.ServiceLister
	servicesSynced atomic.Bool

	started    atomic.Bool
	lastSync   atomic.Int64 // unix nanoseconds of the sync loop's last turn
	runtimeErr atomic.Pointer[error]

	mu      sync.Mutex
	workers map[types.UID]*worker
	spawn   func(*worker) // starts a worker's goroutine; nil while the agent does not run
}

// New checks the configuration, measures the host and makes an Agent. Neither
// the runtime nor the API has to be up.
func New(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, pods: newPodCache(), objects: newObjects(cfg.Client), workers: map[types.UID]*worker{}}
	if a.runtime, err = cri.Dial(cfg.CRIEndpoint); err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	driver := cgroups.Driver(cfg.CgroupDriver)
	if cfg.CgroupDriver == "auto" {
		driver = cgroups.Detect()
	}
	if a.cgroups, err = cgroups.New(driver); err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	a.volumes = volumes.New(filepath.Join(cfg.RootDir, "pods"), cfg.Client, a.facts, cfg.Logger)
	a.probes = &probes.Manager{Exec: a.runtime, Changed: a.poke, Unhealthy: a.unhealthy}
	a.status = status.NewManager(cfg.Client, cfg.Logger, a.podAnswered)
	a.importer = &images.Importer{Dirs: []string{cfg.SystemImages, cfg.ImagesDir}, StateFile: filepath.Join(cfg.RootDir, "imported-images.json"),
		Images: a.runtime, Log: cfg.Logger, Imported: a.imported, Failed: a.importFailed}
	if a.node, err = node.New(node.Config{
		Name: cfg.NodeName, Client: cfg.Client, IPs: func() []netip.Addr { return cfg.NodeIPs }, Capacity: cfg.Capacity, Reserved: cfg.SystemReserved,
		Labels: cfg.NodeLabels, Taints: cfg.NodeTaints, MaxPods: cfg.MaxPods, DaemonPort: cfg.DaemonPort, RootDir: cfg.RootDir,
		Runtime: a.runtime, Health: a.canSync, Network: a.networkReady, Log: cfg.Logger,
	}); err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	_, err = os.Stat("/sys/kernel/security/apparmor/profiles")
	a.apparmor = err == nil
	a.metrics = newMetrics(a, cfg.Registerer)
	return a, nil
}

// Run runs the node until ctx ends, then returns with every goroutine
// stopped and every container left as it is.
func (a *Agent) Run(ctx context.Context) error {
	if !a.started.CompareAndSwap(false, true) {
		return errors.New("node agent: Run called twice")
	}
	if err := os.MkdirAll(filepath.Join(a.cfg.RootDir, "pods"), 0o750); err != nil {
		return fmt.Errorf("node agent: %w", err)
	}
	a.lastSync.Store(time.Now().UnixNano())
	stopEvents := a.startEvents()
	defer stopEvents()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { a.status.Run(ctx) })
	wg.Go(func() { a.node.Run(ctx) })
	wg.Go(func() { a.importer.Run(ctx) })

	a.mu.Lock()
	a.spawn = func(w *worker) {
		wg.Go(func() {
			if w.run(ctx) {
				a.forget(w)
			}
		})
	}
	a.mu.Unlock()
	synced := a.watch(ctx, &wg)
	wg.Go(func() { a.keepHouse(ctx) })
	a.syncLoop(ctx, synced)
	cancel()
	a.mu.Lock()
	a.spawn = nil
	a.mu.Unlock()
	wg.Wait()
	a.probes.Wait()
	return nil
}

// Healthy returns nil while the sync loop turns. It does not depend on the
// API or the runtime being reachable: a restart of the agent mends neither.
func (a *Agent) Healthy() error {
	last := a.lastSync.Load()
	if last == 0 {
		return errors.New("node agent: not running yet")
	}
	if d := time.Since(time.Unix(0, last)); d > stallAfter {
		return fmt.Errorf("node agent: sync loop has not turned for %s", d.Round(time.Second))
	}
	return nil
}

// watch begins the watches on the node's pods, on itself and on Services, and
// returns a function that says whether the pods have been listed once.
func (a *Agent) watch(ctx context.Context, wg *sync.WaitGroup) func() bool {
	own := func(field string) informers.SharedInformerOption {
		return informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(field, a.cfg.NodeName).String()
		})
	}
	podFactory := informers.NewSharedInformerFactoryWithOptions(a.cfg.Client, 0, own("spec.nodeName"))
	podInformer := podFactory.Core().V1().Pods().Informer()
	reg, err := podInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.podTold(o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { a.podTold(o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if p, ok := o.(*v1.Pod); ok {
				a.podRemoved(p)
			}
		},
	})
	if err != nil { // only for an informer that was stopped
		a.cfg.Logger.Error("pods are not watched", "err", err)
		return func() bool { return false }
	}
	nodeFactory := informers.NewSharedInformerFactoryWithOptions(a.cfg.Client, 0, own("metadata.name"))
	_, err = nodeFactory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.node.Told(o.(*v1.Node)) },
		UpdateFunc: func(_, o any) { a.node.Told(o.(*v1.Node)) },
	})
	if err != nil {
		a.cfg.Logger.Error("the node is not watched", "err", err)
	}
	svcFactory := informers.NewSharedInformerFactory(a.cfg.Client, 0)
	svcs := svcFactory.Core().V1().Services()
	a.services = svcs.Lister()
	svcInformer := svcs.Informer()
	for _, f := range []informers.SharedInformerFactory{nodeFactory, svcFactory, podFactory} {
		f.Start(ctx.Done())
		wg.Go(f.Shutdown)
	}
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), svcInformer.HasSynced) {
			a.servicesSynced.Store(true)
		}
	})
	return reg.HasSynced
}

func (a *Agent) servicesKnown() bool { return a.servicesSynced.Load() }

// podAnswered takes a pod from the API's answer to a status sent. It may come
// after the pod was removed, and must not bring it back.
func (a *Agent) podAnswered(p *v1.Pod) {
	a.mu.Lock()
	w := a.workers[p.UID]
	a.mu.Unlock()
	if w != nil && !w.isGone() {
		w.told(a.pods.told(p))
	}
}

// podTold takes a pod from the watch.
func (a *Agent) podTold(p *v1.Pod) {
	if p.Spec.NodeName != a.cfg.NodeName {
		return
	}
	a.mu.Lock()
	w := a.workers[p.UID]
	fresh := w == nil
	if fresh {
		if a.spawn == nil {
			a.mu.Unlock()
			return
		}
		w = newWorker(a, cri.PodRef(p))
		a.workers[p.UID] = w
	}
	a.mu.Unlock()
	p = a.pods.told(p)
	w.told(p)
	if !fresh {
		return
	}
	if r := a.admission(p); r != nil {
		a.event(p, v1.EventTypeWarning, r.reason, r.message)
		w.fail(r.reason, "Pod was rejected: "+r.message, 0)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spawn != nil {
		a.spawn(w)
	}
}

// admission looks at a pod that has not run here yet.
func (a *Agent) admission(p *v1.Pod) *refusal {
	if p.Status.StartTime != nil || p.DeletionTimestamp != nil || pods.Terminal(p) {
		return nil // it was admitted before
	}
	var others []*v1.Pod
	a.mu.Lock()
	ws := make([]*worker, 0, len(a.workers))
	for uid, w := range a.workers {
		if uid != p.UID {
			ws = append(ws, w)
		}
	}
	a.mu.Unlock()
	for _, w := range ws {
		if w.ended() {
			continue
		}
		if o := a.pods.get(w.uid()); o != nil {
			others = append(others, o)
		}
	}
	return admit(p, others, a.nodeForAdmission())
}

// nodeForAdmission is the Node with what this host has now.
func (a *Agent) nodeForAdmission() *v1.Node {
	n := a.node.Node().DeepCopy()
	for name, q := range a.node.Allocatable() {
		if n.Status.Allocatable == nil {
			n.Status.Allocatable = v1.ResourceList{}
		}
		n.Status.Allocatable[name] = q
	}
	return n
}

func (a *Agent) podRemoved(p *v1.Pod) {
	a.mu.Lock()
	w := a.workers[p.UID]
	a.mu.Unlock()
	if w != nil {
		w.removed(p)
	}
}

// forget drops a worker that finished.
func (a *Agent) forget(w *worker) {
	a.mu.Lock()
	delete(a.workers, w.uid())
	a.mu.Unlock()
	a.pods.drop(w.uid())
	a.status.Forget(w.uid())
	a.probes.Forget(w.uid())
}

func (a *Agent) poke(uid types.UID) {
	a.mu.Lock()
	w := a.workers[uid]
	a.mu.Unlock()
	if w != nil {
		w.poke()
	}
}

func (a *Agent) everyWorker(f func(*worker)) {
	a.mu.Lock()
	ws := make([]*worker, 0, len(a.workers))
	for _, w := range a.workers {
		ws = append(ws, w)
	}
	a.mu.Unlock()
	for _, w := range ws {
		f(w)
	}
}

func (a *Agent) hostIPs() []string {
	out := make([]string, len(a.cfg.NodeIPs))
	for i, ip := range a.cfg.NodeIPs {
		out[i] = ip.String()
	}
	return out
}

// facts is what environment and downward API of a pod are read from.
func (a *Agent) facts(pod *v1.Pod) env.Facts {
	f := env.Facts{NodeName: a.cfg.NodeName, HostIPs: a.hostIPs(), Allocatable: a.node.Allocatable(), Objects: a.objects}
	if a.servicesSynced.Load() {
		f.Services, _ = a.services.List(labels.Everything()) // from memory: no error
	}
	for _, ip := range pod.Status.PodIPs {
		f.PodIPs = append(f.PodIPs, ip.IP)
	}
	return f
}

func (a *Agent) memoryCapacity() int64 {
	q := a.node.Capacity()[v1.ResourceMemory]
	return q.Value()
}

func (a *Agent) networkReady() error {
	if a.cfg.Network == nil {
		return nil
	}
	return a.cfg.Network.Ready()
}

// canSync says whether the runtime answered the last time it was listed.
func (a *Agent) canSync() error {
	if p := a.runtimeErr.Load(); p != nil && *p != nil {
		return fmt.Errorf("container runtime does not list its containers: %w", *p)
	}
	return a.Healthy()
}
