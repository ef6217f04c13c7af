package controlplane

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"

	"github.com/tripod-cluster/tripod/controllers"
)

// evaluated are the resources whose use is more than a count of objects; the
// controller counts the objects of all others.
var evaluated = map[schema.GroupResource]bool{
	{Resource: "pods"}:                                     true,
	{Resource: "services"}:                                 true,
	{Resource: "persistentvolumeclaims"}:                   true,
	{Group: "resource.k8s.io", Resource: "resourceclaims"}: true,
}

// quotaUsage makes the evaluators that admission has, over the shared caches.
func quotaUsage(f informers.SharedInformerFactory) (controllers.QuotaUsage, error) {
	lister := func(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
		i, err := f.ForResource(gvr)
		if err != nil {
			return nil, err
		}
		return i.Lister(), nil
	}
	all, err := core.NewEvaluators(lister, f, nil)
	if err != nil {
		return nil, fmt.Errorf("evaluators of resource quotas: %w", err)
	}
	var some []quota.Evaluator
	for _, e := range all {
		if evaluated[e.GroupResource()] {
			some = append(some, e)
		}
	}
	registry := generic.NewRegistry(some)
	return func(namespace string, spec *corev1.ResourceQuotaSpec) (corev1.ResourceList, error) {
		return quota.CalculateUsage(namespace, spec.Scopes, spec.Hard, registry, spec.ScopeSelector)
	}, nil
}
