package endpoints

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(i int, ready corev1.ConditionStatus, port int32) *corev1.Pod {
	ip := fmt.Sprintf("10.244.%d.%d", i/250, i%250+1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))},
		Spec: corev1.PodSpec{NodeName: "n", RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: corev1.ProtocolTCP}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func service() *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{
		{Name: "web", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP},
	}}}
}

func TestSubsets(t *testing.T) {
	going := pod(4, corev1.ConditionTrue, 80)
	going.DeletionTimestamp = &metav1.Time{}
	ended := pod(5, corev1.ConditionFalse, 80)
	ended.Status.Phase = corev1.PodSucceeded
	pods := []*corev1.Pod{pod(2, corev1.ConditionTrue, 80), pod(1, corev1.ConditionTrue, 80), pod(3, corev1.ConditionFalse, 80), going, ended, pod(6, corev1.ConditionTrue, 8080)}
	got := subsets(service(), pods)
	if len(got) != 2 {
		t.Fatalf("%d subsets, want one per target port: %+v", len(got), got)
	}
	one := got[0]
	if one.Ports[0].Port != 80 {
		one = got[1]
	}
	if len(one.Addresses) != 2 || one.Addresses[0].IP != "10.244.0.2" || len(one.NotReadyAddresses) != 1 {
		t.Errorf("subset of port 80: %+v", one)
	}
	svc := service()
	svc.Spec.PublishNotReadyAddresses = true
	ready := 0
	for _, s := range subsets(svc, pods) {
		ready += len(s.Addresses)
	}
	if ready != 5 {
		t.Errorf("%d addresses with publishNotReadyAddresses, want 5 (the terminating one too)", ready)
	}
	headless := service()
	headless.Spec.ClusterIP, headless.Spec.Ports = corev1.ClusterIPNone, nil
	if got := subsets(headless, pods[:1]); len(got) != 1 || len(got[0].Addresses) != 1 || got[0].Ports != nil {
		t.Errorf("headless without ports: %+v", got)
	}
	v6 := service()
	v6.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	if got := subsets(v6, pods); len(got) != 0 {
		t.Errorf("an IPv6 Service has IPv4 addresses: %+v", got)
	}
}

func TestTruncate(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 1500 {
		ready := corev1.ConditionTrue
		if i%2 == 0 {
			ready = corev1.ConditionFalse
		}
		pods = append(pods, pod(i, ready, int32(80+i%3)))
	}
	s := subsets(service(), pods)
	if !truncate(s) {
		t.Fatal("not cut")
	}
	ready, notReady := 0, 0
	for _, x := range s {
		ready += len(x.Addresses)
		notReady += len(x.NotReadyAddresses)
	}
	if ready != 750 || ready+notReady != capacity {
		t.Errorf("%d ready and %d not ready, want all 750 ready ones and %d in all", ready, notReady, capacity)
	}
	if truncate(s) {
		t.Error("cut again")
	}
}
