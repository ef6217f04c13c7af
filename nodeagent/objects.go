package nodeagent

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// objectTTL is how long a ConfigMap or Secret is taken from memory. Volumes
// look again every refreshEvery, so a change is seen after at most both.
const (
	objectTTL     = 10 * time.Second
	objectTimeout = 10 * time.Second
	objectKept    = 6 * time.Hour // for times when the API cannot be reached
)

// objects gets the ConfigMaps and Secrets that pods name. A node may read one
// only while a pod bound to it names it, so there is no watch over all. It
// keeps them for objectTTL, which makes one request of what the containers
// of many pods ask at the same time, and longer for times without the API.
// Failures are not kept.
type objects struct {
	client kubernetes.Interface
	mu     sync.Mutex
	have   map[string]object
}

type object struct {
	value any
	at    time.Time
}

func newObjects(c kubernetes.Interface) *objects {
	return &objects{client: c, have: map[string]object{}}
}

func (o *objects) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	v, err := o.get(ctx, "configmap/"+namespace+"/"+name, func(ctx context.Context) (any, error) {
		return o.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, err
	}
	return v.(*v1.ConfigMap), nil
}

func (o *objects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	v, err := o.get(ctx, "secret/"+namespace+"/"+name, func(ctx context.Context) (any, error) {
		return o.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, err
	}
	return v.(*v1.Secret), nil
}

func (o *objects) get(ctx context.Context, key string, fetch func(context.Context) (any, error)) (any, error) {
	o.mu.Lock()
	h, ok := o.have[key]
	o.mu.Unlock()
	if ok && time.Since(h.at) < objectTTL {
		return h.value, nil
	}
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	v, err := fetch(ctx)
	if err != nil {
		if ok && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return h.value, nil // a container restarts on what it had while the API is away
		}
		o.mu.Lock()
		delete(o.have, key)
		o.mu.Unlock()
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for k, h := range o.have {
		if now.Sub(h.at) > objectKept {
			delete(o.have, k)
		}
	}
	o.have[key] = object{v, now}
	return v, nil
}
