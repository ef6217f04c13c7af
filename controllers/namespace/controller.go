package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

type controller struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	content    *content
	clock      clock.PassiveClock
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue, client metadata.Interface, disco discovery.DiscoveryInterface) (runtime.Controller, error) {
	namespaces := d.Informers.Core().V1().Namespaces()
	c := &controller{
		client: d.Client, namespaces: namespaces.Lister(), clock: d.Clock,
		content: &content{client: client, discovery: disco},
	}
	return runtime.Controller{
		Workers: 10,
		Sources: []runtime.Source{runtime.Each(namespaces.Informer(), func(ns *corev1.Namespace) {
			if ns.DeletionTimestamp != nil {
				q.Add(ns.Name)
			}
		})},
		Reconcile: c.reconcile,
		Explain:   c.explain,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	ns, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return 0, nil
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns = ns.DeepCopy()
		ns.Status.Phase = corev1.NamespaceTerminating
		if ns, err = c.client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreGone(err, "mark namespace %s as terminating", name)
		}
	}
	now := c.clock.Now()
	f := c.content.clear(ctx, name, false, now)
	if f.empty() {
		// Discovery may have been a little old: make sure with a fresh one.
		f = c.content.clear(ctx, name, true, now)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if f.empty() {
		return 0, c.finalize(ctx, ns)
	}
	if list, changed := conditions(ns.Status.Conditions, f, now); changed {
		want := ns.DeepCopy()
		want.Status.Conditions = list
		if _, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, want, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreGone(err, "write conditions of namespace %s", name)
		}
	}
	if err := errors.Join(append(f.deleteErrs, f.discoveryErr)...); err != nil {
		return 0, fmt.Errorf("empty namespace %s: %w", name, err)
	}
	return f.again(now.Sub(ns.DeletionTimestamp.Time)), nil
}

// finalize takes our finalizer off; the API server then deletes the namespace.
func (c *controller) finalize(ctx context.Context, ns *corev1.Namespace) error {
	want := ns.DeepCopy()
	want.Spec.Finalizers = slices.DeleteFunc(want.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err := c.client.CoreV1().Namespaces().Finalize(ctx, want, metav1.UpdateOptions{})
	return ignoreGone(err, "finalize namespace %s", ns.Name)
}

func ignoreGone(err error, format string, name string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf(format+": %w", name, err)
}
