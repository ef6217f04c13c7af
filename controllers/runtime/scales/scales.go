// Package scales reads and writes the scale subresource of objects of any kind,
// also of custom resources.
package scales

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

// Client finds scales by kind and name. It is safe for use by many goroutines.
type Client struct {
	// Mapper tells the resources of a kind.
	Mapper meta.RESTMapper
	// Getter reads and writes the scales of a resource.
	Getter scale.ScalesGetter
}

// New makes a client over the API server that config reaches. What kinds there
// are is read from discovery when it is first asked for, and again when a kind
// is not among them.
func New(config *rest.Config, d discovery.DiscoveryInterface) (*Client, error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
	getter, err := scale.NewForConfig(config, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(d))
	if err != nil {
		return nil, fmt.Errorf("scale client: %w", err)
	}
	return &Client{Mapper: mapper, Getter: getter}, nil
}

// Get returns the scale of an object and its resource, for Update. The error is
// NotFound when there is no such object, or it has no scale.
func (c *Client) Get(ctx context.Context, namespace string, gvk schema.GroupVersionKind, name string) (*autoscalingv1.Scale, schema.GroupResource, error) {
	mappings, err := c.Mapper.RESTMappings(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) || err == nil && len(mappings) == 0 {
		return nil, schema.GroupResource{}, fmt.Errorf("find the resource of kind %s: %w", gvk, apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, name))
	}
	if err != nil {
		return nil, schema.GroupResource{}, fmt.Errorf("find the resource of kind %s: %w", gvk, err)
	}
	var errs []error
	for _, m := range mappings {
		gr := m.Resource.GroupResource()
		s, err := c.Getter.Scales(namespace).Get(ctx, gr, name, metav1.GetOptions{})
		if err == nil {
			return s, gr, nil
		}
		errs = append(errs, err)
	}
	return nil, schema.GroupResource{}, fmt.Errorf("read scale of %s %s/%s: %w", gvk.Kind, namespace, name, errors.Join(errs...))
}

// Update writes a scale that Get returned, changed.
func (c *Client) Update(ctx context.Context, gr schema.GroupResource, s *autoscalingv1.Scale) error {
	if _, err := c.Getter.Scales(s.Namespace).Update(ctx, gr, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update scale of %s %s/%s: %w", gr, s.Namespace, s.Name, err)
	}
	return nil
}
