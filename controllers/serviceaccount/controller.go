package serviceaccount

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const name = "default"

type controller struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{d.Client, core.Namespaces().Lister(), core.ServiceAccounts().Lister()}
	return runtime.Controller{
		Workers: 1,
		Sources: []runtime.Source{
			runtime.Own(q, core.Namespaces().Informer()),
			runtime.On(core.ServiceAccounts().Informer(), runtime.Handlers[*corev1.ServiceAccount]{
				Delete: func(sa *corev1.ServiceAccount) {
					if sa.Name == name {
						q.Add(sa.Namespace)
					}
				},
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, err := c.namespaces.Get(key)
	if apierrors.IsNotFound(err) || (err == nil && ns.Status.Phase == corev1.NamespaceTerminating) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if _, err := c.accounts.ServiceAccounts(key).Get(name); !apierrors.IsNotFound(err) {
		return 0, err
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: key}}
	_, err = c.client.CoreV1().ServiceAccounts(key).Create(ctx, sa, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || runtime.NamespaceEnding(err) {
		return 0, nil
	}
	return 0, fmt.Errorf("create service account %s/%s: %w", key, name, err)
}
