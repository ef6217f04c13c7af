package endpointslicemirroring

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

type controller struct {
	client    kubernetes.Interface
	endpoints corelisters.EndpointsLister
	services  corelisters.ServiceLister
	slices    discoverylisters.EndpointSliceLister
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core, slices := d.Informers.Core().V1(), d.Informers.Discovery().V1().EndpointSlices()
	c := &controller{d.Client, core.Endpoints().Lister(), core.Services().Lister(), slices.Lister()}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Own(q, core.Endpoints().Informer()),
			runtime.Own(q, core.Services().Informer()), // of the same name
			runtime.Each(slices.Informer(), func(s *discoveryv1.EndpointSlice) {
				if s.Labels[discoveryv1.LabelManagedBy] == managedBy {
					q.Add(s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName])
				}
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	var want map[string]*discoveryv1.EndpointSlice
	e, err := c.endpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err == nil {
		var svc *corev1.Service
		if svc, err = c.services.Services(namespace).Get(name); err != nil {
			if !apierrors.IsNotFound(err) {
				return 0, err
			}
			svc = nil
		}
		if mirrored(e, svc) {
			want = wanted(e)
		}
	}
	have, err := c.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: managedBy,
	}))
	if err != nil {
		return 0, err
	}
	api := c.client.DiscoveryV1().EndpointSlices(namespace)
	there := map[string]bool{}
	for _, s := range have {
		w := want[s.Name]
		if w == nil {
			err := api.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return 0, fmt.Errorf("delete endpoint slice %s/%s: %w", namespace, s.Name, err)
			}
			continue
		}
		there[s.Name] = true
		if same(s, w) {
			continue
		}
		next := s.DeepCopy()
		next.Labels, next.Annotations, next.OwnerReferences = w.Labels, w.Annotations, w.OwnerReferences
		next.Ports, next.Endpoints = w.Ports, w.Endpoints
		if _, err := api.Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("update endpoint slice %s/%s: %w", namespace, s.Name, err)
		}
	}
	for _, w := range want {
		if there[w.Name] {
			continue
		}
		_, err := api.Create(ctx, w, metav1.CreateOptions{})
		switch {
		case err == nil, runtime.NamespaceEnding(err):
		case apierrors.IsAlreadyExists(err):
			return 0, runtime.Silent(err) // the cache will show it
		default:
			return 0, fmt.Errorf("create endpoint slice %s/%s: %w", namespace, w.Name, err)
		}
	}
	return 0, nil
}
