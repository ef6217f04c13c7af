package replicas

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Unix(1e9, 0)

type podOption func(*corev1.Pod)

func pod(name string, options ...podOption) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "n-" + name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		}},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func unbound(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
}
func pending(p *corev1.Pod)  { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }
func notReady(p *corev1.Pod) { p.Status.Conditions = nil }
func cheap(p *corev1.Pod)    { p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} }
func crowded(p *corev1.Pod)  { p.Spec.NodeName = "crowded" }
func fresh(p *corev1.Pod) {
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
}
func restarted(p *corev1.Pod) {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
}
func young(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Second)) }

func TestVictimsInOrder(t *testing.T) {
	order := []*corev1.Pod{
		pod("unbound", unbound), pod("pending", pending), pod("not-ready", notReady), pod("cheap", cheap),
		pod("crowded", crowded), pod("fresh", fresh), pod("restarted", restarted), pod("young", young), pod("old"),
	}
	related := append([]*corev1.Pod{pod("other", crowded)}, order...)
	shuffled := []*corev1.Pod{order[8], order[3], order[0], order[5], order[1], order[7], order[2], order[4], order[6]}
	for n := 1; n < len(order); n++ {
		got := victims(shuffled, related, n, now)
		for i := range n {
			if got[i].Name != order[i].Name {
				t.Fatalf("victim %d of %d is %s, want %s", i, n, got[i].Name, order[i].Name)
			}
		}
	}
}

func TestDecide(t *testing.T) {
	set := func(n int32) *appsv1.ReplicaSet { return &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &n}} }
	var many []*corev1.Pod
	for i := range 600 {
		many = append(many, pod(fmt.Sprint(i)))
	}
	if p := decide(set(3), many[:1], nil, now); p.create != 2 || len(p.delete) != 0 {
		t.Errorf("1 of 3: %d to create", p.create)
	}
	if p := decide(set(3), many[:3], nil, now); p.create != 0 || len(p.delete) != 0 {
		t.Errorf("3 of 3: %+v", p)
	}
	if p := decide(set(2000), nil, nil, now); p.create != burst {
		t.Errorf("0 of 2000: %d to create, want a burst", p.create)
	}
	if p := decide(set(0), many, many, now); len(p.delete) != burst {
		t.Errorf("600 of 0: %d to delete, want a burst", len(p.delete))
	}
}

func TestStatus(t *testing.T) {
	two := int32(2)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Generation: 7},
		Spec: appsv1.ReplicaSetSpec{Replicas: &two, MinReadySeconds: 10,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}},
	}
	labelled := func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }
	s, next := status(rs, []*corev1.Pod{pod("1", labelled), pod("2", fresh), pod("3", notReady)}, []*corev1.Pod{pod("4")}, nil, now)
	if s.Replicas != 3 || s.FullyLabeledReplicas != 1 || s.ReadyReplicas != 2 || s.AvailableReplicas != 1 || *s.TerminatingReplicas != 1 || s.ObservedGeneration != 7 {
		t.Errorf("status %+v", s)
	}
	if next != 9*time.Second {
		t.Errorf("the fresh pod becomes available in %s, want 9s", next)
	}
	rs.Status, _ = status(rs, nil, nil, errors.New("quota"), now)
	if len(rs.Status.Conditions) != 1 || rs.Status.Conditions[0].Reason != "FailedCreate" {
		t.Errorf("conditions %+v", rs.Status.Conditions)
	}
	if s, _ := status(rs, nil, nil, nil, now); len(s.Conditions) != 0 {
		t.Errorf("conditions %+v after recovery", s.Conditions)
	}
}
