package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// batch is how long changes of objects are gathered before they are counted.
const batch = 250 * time.Millisecond

// Usage returns the use, in the namespace, of those resources of the quota that
// are more than a count of objects, and may return others. It reads caches.
type Usage func(namespace string, spec *corev1.ResourceQuotaSpec) (corev1.ResourceList, error)

type controller struct {
	client   kubernetes.Interface
	metadata metadata.Interface
	mapper   meta.RESTMapper
	usage    Usage
	quotas   corelisters.ResourceQuotaLister
	clock    clock.PassiveClock
	queue    runtime.Queue

	mu      sync.Mutex
	changed map[string]time.Time // when a quota's use was last seen to change
}

// New builds the controller. mapper finds the versions of resources, m counts
// their objects.
func New(d runtime.Deps, q runtime.Queue, m metadata.Interface, mapper meta.RESTMapper, usage Usage) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{
		client: d.Client, metadata: m, mapper: mapper, usage: usage, quotas: core.ResourceQuotas().Lister(),
		clock: d.Clock, queue: q, changed: map[string]time.Time{},
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(core.ResourceQuotas().Informer(), runtime.Handlers[*corev1.ResourceQuota]{
				Add: func(o *corev1.ResourceQuota) { q.Add(keyOf(o)) }, Update: c.quotaUpdated, Delete: c.quotaDeleted,
			}),
			c.watch(core.Pods().Informer()),
			c.watch(core.Services().Informer()),
			c.watch(core.PersistentVolumeClaims().Informer()),
			c.watch(core.ConfigMaps().Informer()),
		},
		Reconcile: c.reconcile,
	}, nil
}

func keyOf(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// quotaUpdated passes on a change of the limits. One of the use is admission's or
// our own.
func (c *controller) quotaUpdated(o, n *corev1.ResourceQuota) {
	if !equality.Semantic.DeepEqual(o.Status.Used, n.Status.Used) {
		c.mu.Lock()
		c.changed[keyOf(n)] = c.clock.Now()
		c.mu.Unlock()
	}
	if !equality.Semantic.DeepEqual(o.Spec, n.Spec) || !equality.Semantic.DeepEqual(n.Spec.Hard, n.Status.Hard) {
		c.queue.Add(keyOf(n))
	}
}

func (c *controller) quotaDeleted(o *corev1.ResourceQuota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.changed, keyOf(o))
}

// watch counts anew when an object comes, goes or changes. A change of something
// that cannot matter costs a count and no write.
func (c *controller) watch(informer cache.SharedInformer) runtime.Source {
	return runtime.On(informer, runtime.Handlers[metav1.Object]{
		Add: c.objectChanged, Delete: c.objectChanged,
		Update: func(o, n metav1.Object) {
			if o.GetResourceVersion() != n.GetResourceVersion() {
				c.objectChanged(n)
			}
		},
	})
}

func (c *controller) objectChanged(o metav1.Object) {
	quotas, err := c.quotas.ResourceQuotas(o.GetNamespace()).List(labels.Everything())
	if err != nil {
		return
	}
	for _, q := range quotas {
		c.queue.AddAfter(keyOf(q), batch)
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	q, err := c.quotas.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || q.DeletionTimestamp != nil {
		return 0, err
	}
	used, countErr := c.count(ctx, q)
	next := status(q, used)
	if same(q.Status, next) {
		return interval(q.Spec.Hard), countErr
	}
	if wait := c.settling(key); wait > 0 && lowers(q.Status, next) {
		return wait, countErr
	}
	updated := q.DeepCopy()
	updated.Status = next
	if _, err := c.client.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, errors.Join(countErr, fmt.Errorf("update status of resource quota %s: %w", key, err))
	}
	return interval(q.Spec.Hard), countErr
}

// settling returns how long a quota's use is not to be lowered.
func (c *controller) settling(key string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.changed[key]
	if !ok {
		return 0
	}
	return max(0, at.Add(grace).Sub(c.clock.Now()))
}

// count returns the use of what the quota limits, without what could not be
// counted.
func (c *controller) count(ctx context.Context, q *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used, err := c.usage(q.Namespace, &q.Spec)
	if err != nil {
		return nil, fmt.Errorf("count the use of resource quota %s/%s: %w", q.Namespace, q.Name, err)
	}
	out := corev1.ResourceList{}
	for name, n := range used {
		out[name] = n
	}
	var errs []error
	for name := range q.Spec.Hard {
		gr, ok := countedResource(name)
		if _, known := out[name]; known || !ok {
			continue
		}
		n, err := c.objects(ctx, q.Namespace, gr)
		if err != nil {
			errs = append(errs, fmt.Errorf("count %s in %s: %w", gr, q.Namespace, err))
			continue
		}
		out[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return out, errors.Join(errs...)
}

// objects counts the objects of a resource, none when there is no such resource.
// The API server tells how many follow after the first, so none is read but that.
func (c *controller) objects(ctx context.Context, namespace string, gr schema.GroupResource) (int64, error) {
	gvr, err := c.mapper.ResourceFor(gr.WithVersion(""))
	if meta.IsNoMatchError(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var n int64
	options := metav1.ListOptions{Limit: 1}
	for {
		l, err := c.metadata.Resource(gvr).Namespace(namespace).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		n += int64(len(l.Items))
		switch {
		case l.RemainingItemCount != nil:
			return n + *l.RemainingItemCount, nil
		case l.Continue == "":
			return n, nil
		}
		options = metav1.ListOptions{Limit: 500, Continue: l.Continue}
	}
}
