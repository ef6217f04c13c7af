package servicecidr

import (
	"context"
	"fmt"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

type controller struct {
	client    kubernetes.Interface
	cidrs     networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	clock     clock.PassiveClock
	queue     runtime.Queue
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	api := d.Informers.Networking().V1()
	c := &controller{client: d.Client, cidrs: api.ServiceCIDRs().Lister(), addresses: api.IPAddresses().Lister(), clock: d.Clock, queue: q}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Each(api.ServiceCIDRs().Informer(), func(o *networkingv1.ServiceCIDR) {
				q.Add(o.Name)
				c.going() // one that comes may take over their addresses
			}),
			runtime.On(api.IPAddresses().Informer(), runtime.Handlers[*networkingv1.IPAddress]{
				Delete: func(*networkingv1.IPAddress) { c.going() },
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

// going queues the ServiceCIDRs that are being deleted.
func (c *controller) going() {
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return
	}
	for _, o := range all {
		if o.DeletionTimestamp != nil {
			c.queue.Add(o.Name)
		}
	}
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	cidr, err := c.cidrs.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if cidr.DeletionTimestamp == nil {
		if !slices.Contains(cidr.Finalizers, finalizer) {
			next := cidr.DeepCopy()
			next.Finalizers = append(next.Finalizers, finalizer)
			if cidr, err = c.client.NetworkingV1().ServiceCIDRs().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return 0, fmt.Errorf("add the finalizer of service CIDR %s: %w", name, err)
			}
		}
		_, err = c.tell(ctx, cidr, false)
		return 0, err
	}
	if !slices.Contains(cidr.Finalizers, finalizer) {
		return 0, nil
	}
	all, err := c.cidrs.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	addresses, err := c.addresses.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	used := inUse(cidr, all, addresses)
	if cidr, err = c.tell(ctx, cidr, used); err != nil || used {
		return 0, err // an address that goes brings it back
	}
	if wait := cidr.DeletionTimestamp.Add(grace).Sub(c.clock.Now()); wait > 0 {
		return wait, nil
	}
	next := cidr.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
	if _, err := c.client.NetworkingV1().ServiceCIDRs().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("remove the finalizer of service CIDR %s: %w", name, err)
	}
	return 0, nil
}

// tell writes the condition Ready where it is another. It returns the ServiceCIDR
// as it is then.
func (c *controller) tell(ctx context.Context, cidr *networkingv1.ServiceCIDR, used bool) (*networkingv1.ServiceCIDR, error) {
	want := condition(cidr, used)
	want.LastTransitionTime = metav1.NewTime(c.clock.Now())
	next := cidr.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, want) {
		return cidr, nil
	}
	next, err := c.client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update status of service CIDR %s: %w", cidr.Name, err)
	}
	return next, nil
}
