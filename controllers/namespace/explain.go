package namespace

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// explain says what the deletion of a namespace waits for.
func (c *controller) explain(_, name string) ([]runtime.Wait, error) {
	ns, err := c.namespaces.Get(name)
	if err != nil {
		return nil, err
	}
	if ns.DeletionTimestamp == nil {
		return nil, nil
	}
	waits := runtime.DeletionWaits(ns)
	for _, cond := range ns.Status.Conditions {
		if cond.Status != corev1.ConditionTrue {
			continue
		}
		by := "controller namespace"
		switch cond.Type {
		case corev1.NamespaceDeletionDiscoveryFailure:
			by = "the API service that does not answer: see kubectl get apiservices"
		case corev1.NamespaceFinalizersRemaining:
			by = "who set the finalizers"
		case corev1.NamespaceContentRemaining:
			by = "their owners and nodes"
		}
		waits = append(waits, runtime.Wait{For: string(cond.Type) + ": " + cond.Message, By: by})
	}
	for _, f := range ns.Spec.Finalizers {
		switch {
		case f != corev1.FinalizerKubernetes:
			waits = append(waits, runtime.Wait{For: "finalizer " + string(f), By: "who set the finalizer"})
		case len(waits) == 0:
			waits = append(waits, runtime.Wait{For: "its content to be deleted", By: "controller namespace"})
		}
	}
	return waits, nil
}
