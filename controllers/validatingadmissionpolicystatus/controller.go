package validatingadmissionpolicystatus

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyadmissionv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/client-go/kubernetes"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// manager owns the fields that are written.
const manager = "validatingadmissionpolicy-status"

// Check returns what is wrong with the types of a policy's expressions.
type Check func(*admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning

type controller struct {
	client   kubernetes.Interface
	policies admissionlisters.ValidatingAdmissionPolicyLister
	check    Check
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue, check Check) (runtime.Controller, error) {
	policies := d.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &controller{d.Client, policies.Lister(), check}
	return runtime.Controller{
		Sources:   []runtime.Source{runtime.Own(q, policies.Informer())},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	p, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || p.Generation <= p.Status.ObservedGeneration {
		return 0, err
	}
	checked := applyadmissionv1.TypeChecking()
	for _, w := range c.check(p.DeepCopy()) {
		checked.WithExpressionWarnings(applyadmissionv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	status := applyadmissionv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(p.Generation).WithTypeChecking(checked)
	_, err = c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		applyadmissionv1.ValidatingAdmissionPolicy(name).WithStatus(status), metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("write type check of policy %s: %w", name, err)
	}
	return 0, nil
}
