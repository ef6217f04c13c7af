package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// content deletes and counts what is in a namespace.
type content struct {
	client    metadata.Interface
	discovery discovery.DiscoveryInterface

	mu     sync.Mutex
	at     time.Time
	cached []resource
}

// resource is one namespaced resource that can be deleted.
type resource struct {
	schema.GroupVersionResource
	collection bool // has deletecollection
}

// discoveryAge is how old discovery may be when a pass begins. A pass that finds
// nothing is repeated with a fresh one before a namespace is let go.
const discoveryAge = 10 * time.Second

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// resources lists the namespaced resources. A partial answer comes with an error.
func (c *content) resources(fresh bool, now time.Time) ([]resource, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !fresh && c.cached != nil && now.Sub(c.at) < discoveryAge {
		return c.cached, nil
	}
	lists, err := discovery.ServerPreferredNamespacedResources(c.discovery)
	var out []resource
	for _, l := range lists {
		gv, perr := schema.ParseGroupVersion(l.GroupVersion)
		if perr != nil {
			err = errors.Join(err, perr)
			continue
		}
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "delete") || !slices.Contains(r.Verbs, "list") {
				continue
			}
			rgv := gv
			if r.Version != "" || r.Group != "" {
				rgv = schema.GroupVersion{Group: r.Group, Version: r.Version}
			}
			out = append(out, resource{rgv.WithResource(r.Name), slices.Contains(r.Verbs, "deletecollection")})
		}
	}
	if err != nil {
		return out, fmt.Errorf("discover namespaced resources: %w", err)
	}
	c.cached, c.at = out, now
	return out, nil
}

// clear asks for the deletion of everything in the namespace and reports what is
// left.
func (c *content) clear(ctx context.Context, namespace string, fresh bool, now time.Time) *findings {
	f := &findings{remaining: map[string]int{}, finalizers: map[string]int{}}
	var all []resource
	all, f.discoveryErr = c.resources(fresh, now)
	var mu sync.Mutex
	visit := func(r resource) {
		left, err := c.clearResource(ctx, namespace, r)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			f.deleteErrs = append(f.deleteErrs, err)
		}
		f.count(r, left, now)
	}
	// Pods go first: what they use, such as their network policies and secrets,
	// stays until they have ended.
	if i := slices.IndexFunc(all, func(r resource) bool { return r.GroupVersionResource == podResource }); i >= 0 {
		visit(all[i])
		all = slices.Delete(slices.Clone(all), i, i+1)
		if len(f.remaining) > 0 || len(f.deleteErrs) > 0 {
			f.podsFirst = true
			return f
		}
	}
	runtime.Parallel(len(all), 8, func(i int) { visit(all[i]) })
	return f
}

func (f *findings) count(r resource, left []metav1.PartialObjectMetadata, now time.Time) {
	if len(left) == 0 {
		return
	}
	name := r.Resource + "."
	if r.Group != "" {
		name = r.Resource + "." + r.Group
	}
	f.remaining[name] += len(left)
	for i := range left {
		o := &left[i]
		for _, fin := range o.Finalizers {
			f.finalizers[fin]++
		}
		if r.GroupVersionResource == podResource && o.DeletionTimestamp != nil {
			f.grace = max(f.grace, o.DeletionTimestamp.Sub(now)) // the timestamp holds the grace period
		}
	}
}

// clearResource deletes the objects of one resource and returns those left.
func (c *content) clearResource(ctx context.Context, namespace string, r resource) ([]metav1.PartialObjectMetadata, error) {
	api := c.client.Resource(r.GroupVersionResource).Namespace(namespace)
	left, err := list(ctx, api)
	if err != nil || len(left) == 0 {
		return nil, wrap(err, "list", namespace, r)
	}
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	if slices.ContainsFunc(left, func(o metav1.PartialObjectMetadata) bool { return o.DeletionTimestamp == nil }) {
		deleted := false
		if r.collection {
			err = api.DeleteCollection(ctx, opts, metav1.ListOptions{})
			deleted = err == nil
			if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
				err = nil // one by one then
			}
		}
		if !deleted && err == nil {
			for i := range left {
				if left[i].DeletionTimestamp != nil {
					continue
				}
				if derr := api.Delete(ctx, left[i].Name, opts); derr != nil && !apierrors.IsNotFound(derr) && !apierrors.IsMethodNotSupported(derr) {
					err = derr
				}
			}
		}
		if err != nil {
			return left, wrap(err, "delete", namespace, r)
		}
		left, err = list(ctx, api)
	}
	return left, wrap(err, "list", namespace, r)
}

func list(ctx context.Context, api metadata.ResourceInterface) ([]metav1.PartialObjectMetadata, error) {
	var out []metav1.PartialObjectMetadata
	opts := metav1.ListOptions{Limit: 2000}
	for {
		l, err := api.List(ctx, opts)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return out, nil // the resource has no such collection, or has just gone
		}
		if err != nil {
			return nil, err
		}
		out = append(out, l.Items...)
		if opts.Continue = l.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

func wrap(err error, what, namespace string, r resource) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s in namespace %s: %w", what, r.GroupResource(), namespace, err)
}
