package devicetainteviction

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestUsersOfATaintedDeviceAreEvicted(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "uid"}, Spec: corev1.PodSpec{NodeName: "n"}}
	}
	claim := func(name, of, device string) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Status: resourcev1.ResourceClaimStatus{
				Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
					Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "d", Pool: "p", Device: device}},
				}},
				ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: of, UID: "uid"}},
			},
		}
	}
	c := runtimetest.New(t, pod("victim"), pod("other"), claim("a", "victim", "gpu0"), claim("b", "other", "gpu1"))
	c.Run(t, map[string]runtime.Builder{"devicetainteviction": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	c.Settle(t)
	device, now := "gpu0", metav1.Now()
	rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken"}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: &resourcev1.DeviceTaintSelector{Device: &device},
		Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &now},
	}}
	if _, err := c.ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		if _, err := c.CoreV1().Pods("default").Get(t.Context(), "victim", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "the pod with the tainted device is still there"
		}
		return ""
	})
	if _, err := c.CoreV1().Pods("default").Get(t.Context(), "other", metav1.GetOptions{}); err != nil {
		t.Errorf("a pod with another device: %v", err)
	}
}
