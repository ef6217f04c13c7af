package validatingadmissionpolicystatus

import (
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestEachGenerationIsCheckedOnce(t *testing.T) {
	p := func(name string, generation, observed int64) *admissionv1.ValidatingAdmissionPolicy {
		return &admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation},
			Status:     admissionv1.ValidatingAdmissionPolicyStatus{ObservedGeneration: observed},
		}
	}
	c := runtimetest.New(t, p("new", 2, 1), p("checked", 1, 1))
	check := func(p *admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning {
		return []admissionv1.ExpressionWarning{{FieldRef: "spec.validations[0].expression", Warning: "undefined field 'x' of " + p.Name}}
	}
	c.Run(t, map[string]runtime.Builder{"validatingadmissionpolicystatus": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q, check) }})
	runtimetest.Eventually(t, func() string {
		got, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "new", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if got.Status.ObservedGeneration != 2 || got.Status.TypeChecking == nil || len(got.Status.TypeChecking.ExpressionWarnings) != 1 {
			return fmt.Sprintf("status %v", got.Status)
		}
		return ""
	})
	c.Settle(t)
	if w := c.Writes(); w != 1 {
		t.Errorf("%d writes, want one", w)
	}
}
