package garbagecollector

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// resource is one kind of object as the API serves it.
type resource struct {
	name       schema.GroupVersionResource
	kind       schema.GroupVersionKind
	namespaced bool
}

// kinds is what discovery knows.
type kinds struct {
	byKind map[schema.GroupVersionKind]resource
	// watched are the resources to watch, each in one version.
	watched map[schema.GroupVersionResource]resource
	// failed are the group versions that could not be discovered.
	failed map[schema.GroupVersion]bool
}

// ignored are the resources whose objects nobody owns and that change all the
// time, or that are other resources seen again.
var ignored = map[schema.GroupResource]bool{
	{Group: "", Resource: "events"}:              true,
	{Group: "events.k8s.io", Resource: "events"}: true,
	{Group: "", Resource: "bindings"}:            true,
	{Group: "", Resource: "componentstatuses"}:   true,
	{Group: "metrics.k8s.io", Resource: "pods"}:  true,
	{Group: "metrics.k8s.io", Resource: "nodes"}: true,
}

// discover asks for all kinds. A group that fails is noted; the error is for a
// discovery that gave nothing at all.
func discover(d discovery.DiscoveryInterface) (kinds, error) {
	k := kinds{
		byKind:  map[schema.GroupVersionKind]resource{},
		watched: map[schema.GroupVersionResource]resource{},
		failed:  map[schema.GroupVersion]bool{},
	}
	groups, lists, err := d.ServerGroupsAndResources()
	if err != nil {
		var partial *discovery.ErrGroupDiscoveryFailed
		if !errors.As(err, &partial) || len(lists) == 0 {
			return k, fmt.Errorf("discover the API's resources: %w", err)
		}
		for gv := range partial.Groups {
			k.failed[gv] = true
		}
	}
	preferred := map[string]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
	}
	chosen := map[schema.GroupResource]resource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			a := &list.APIResources[i]
			if strings.Contains(a.Name, "/") {
				continue
			}
			r := resource{name: gv.WithResource(a.Name), kind: gv.WithKind(a.Kind), namespaced: a.Namespaced}
			k.byKind[r.kind] = r
			gr := r.name.GroupResource()
			if ignored[gr] || !collectable(a) {
				continue
			}
			// The first version listed, unless the preferred one has it too.
			if _, ok := chosen[gr]; !ok || preferred[gv.Group] == gv.Version {
				chosen[gr] = r
			}
		}
	}
	for _, r := range chosen {
		k.watched[r.name] = r
	}
	return k, nil
}

func collectable(a *metav1.APIResource) bool {
	for _, v := range []string{"delete", "list", "watch"} {
		if !slices.Contains(a.Verbs, v) {
			return false
		}
	}
	return true
}
