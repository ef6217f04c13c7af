package tokencleaner

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const (
	secretType    = corev1.SecretType("bootstrap.kubernetes.io/token")
	expirationKey = "expiration"
)

type controller struct {
	client  kubernetes.Interface
	secrets corelisters.SecretLister
	clock   clock.PassiveClock
	log     *slog.Logger
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	// Only tokens are cached, not the cluster's secrets.
	informer := coreinformers.NewFilteredSecretInformer(d.Client, metav1.NamespaceSystem, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(secretType)).String()
		})
	c := &controller{d.Client, corelisters.NewSecretLister(informer.GetIndexer()), d.Clock, d.Log}
	return runtime.Controller{
		Workers:   1,
		Private:   []cache.SharedInformer{informer},
		Sources:   []runtime.Source{runtime.Own(q, informer)},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	s, err := c.secrets.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) || (err == nil && s.Type != secretType) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	left, expires := lifetime(s, c.clock.Now())
	if !expires {
		return 0, nil
	}
	if left > 0 {
		return left, nil
	}
	err = c.client.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{
		// Not if it was prolonged meanwhile.
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("delete expired bootstrap token %s: %w", key, err)
	}
	c.log.Info("expired bootstrap token deleted", "secret", key)
	return 0, nil
}

// lifetime is how long the token is still good for; expires is false when it has
// no end.
func lifetime(s *corev1.Secret, now time.Time) (left time.Duration, expires bool) {
	at := string(s.Data[expirationKey])
	if at == "" {
		return 0, false
	}
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return 0, true
	}
	return t.Sub(now), true
}
