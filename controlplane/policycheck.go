package controlplane

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// policyCheck makes what checks the types of admission policies' expressions: by
// the schemas that are built in, and those that the API server publishes.
func policyCheck(conf *rest.Config) (func(*admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning, error) {
	client, err := discovery.NewDiscoveryClientForConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("discovery client of the policy check: %w", err)
	}
	var mapper meta.ResettableRESTMapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
	checker := &validating.TypeChecker{
		SchemaResolver: resolver.NewDefinitionsSchemaResolver(openapi.GetOpenAPIDefinitions, scheme.Scheme, apiextensionsscheme.Scheme).
			Combine(&resolver.ClientDiscoveryResolver{Discovery: client}),
		RestMapper: mapper,
	}
	return func(p *admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning {
		mapper.Reset() // kinds may have come since
		return checker.Check(p)
	}, nil
}
