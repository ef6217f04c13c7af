package resourceclaim

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func pod(name, uid string) *corev1.Pod {
	template := "gpu"
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	p.UID = "uid-of-pod"
	if uid != "" {
		p.UID = "another-uid"
	}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "dev", ResourceClaimTemplateName: &template}}
	return p
}

func TestDecide(t *testing.T) {
	one := []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "1"}}
	claim := func(finalizer, going bool, reserved []resourcev1.ResourceClaimConsumerReference) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}, ReservedFor: reserved}}
		if finalizer {
			c.Finalizers = []string{resourcev1.Finalizer}
		}
		if going {
			c.DeletionTimestamp = &metav1.Time{}
		}
		return c
	}
	for name, x := range map[string]struct {
		claim     *resourcev1.ResourceClaim
		remain    []resourcev1.ResourceClaimConsumerReference
		writes    bool
		allocated bool
		finalizer bool
	}{
		"in use":                   {claim(true, false, one), one, false, true, false},
		"in use, to be deleted":    {claim(true, true, one), one, false, true, false},
		"its last user is gone":    {claim(true, false, one), nil, true, false, true},
		"allocated by another":     {claim(false, false, one), nil, true, true, false},
		"unused, kept":             {claim(true, false, nil), nil, false, true, false},
		"unused, to be deleted":    {claim(true, true, nil), nil, true, false, true},
		"unused, another's, to go": {claim(false, true, nil), nil, false, true, false},
	} {
		r := decide(x.claim, x.remain)
		allocated := x.claim.Status.Allocation != nil
		if r.status != nil {
			allocated = r.status.Allocation != nil
		}
		if (r.status != nil) != x.writes || allocated != x.allocated || r.finalizer != x.finalizer {
			t.Errorf("%s: writes %v, allocated %v, finalizer goes %v", name, r.status != nil, allocated, r.finalizer)
		}
	}
}

func TestNamesOfMadeClaimsFit(t *testing.T) {
	long := pod(strings.Repeat("p", 63), "")
	c := newClaim(long, strings.Repeat("e", 63), &resourcev1.ResourceClaimTemplate{})
	if n := len(c.GenerateName); n > generatedLength+1 {
		t.Errorf("prefix %q has %d characters", c.GenerateName, n)
	}
	if c := newClaim(pod("p", ""), "dev", &resourcev1.ResourceClaimTemplate{}); c.GenerateName != "p-dev-" || c.Annotations[resourcev1.PodResourceClaimAnnotation] != "dev" {
		t.Errorf("claim %v", c.ObjectMeta)
	}
}

func TestClaimThroughThePodsLife(t *testing.T) {
	template := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "gpu", Namespace: "default"}}
	c := runtimetest.New(t, template, pod("p", ""))
	c.Run(t, map[string]runtime.Builder{"resourceclaim": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	claims, pods := c.ResourceV1().ResourceClaims("default"), c.CoreV1().Pods("default")
	var name string
	runtimetest.Eventually(t, func() string {
		p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || len(p.Status.ResourceClaimStatuses) != 1 {
			return fmt.Sprintf("claims of the pod: %v, %v", p, err)
		}
		name = *p.Status.ResourceClaimStatuses[0].ResourceClaimName
		return ""
	})
	c.Settle(t)
	if l, err := claims.List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 1 || l.Items[0].Name != name {
		t.Fatalf("claims %v, %v", l, err)
	}
	if w := c.Writes(); w != 2 {
		t.Errorf("%d writes, want the claim and its name", w)
	}
	// Allocated and reserved as the scheduler does it.
	claim, err := claims.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Finalizers = []string{resourcev1.Finalizer}
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "uid-of-pod"}}
	if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := pods.Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodSucceeded
	if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		if got, err := claims.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("claim of an ended pod: %v, %v", got, err)
		}
		return ""
	})
}
