package replicationcontroller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func newRC(n int32) *corev1.ReplicationController {
	l := map[string]string{"app": "web"}
	return &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: &n, Selector: l, Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}}},
	}
}

func TestPodsFollowTheSize(t *testing.T) {
	c := runtimetest.New(t, newRC(3))
	c.Run(t, map[string]runtime.Builder{"replicationcontroller": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	settled := func(n int) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err.Error()
			}
			rc, err := c.CoreV1().ReplicationControllers("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil || len(l.Items) != n || int(rc.Status.Replicas) != n || int(rc.Status.FullyLabeledReplicas) != n || rc.Status.ObservedGeneration != rc.Generation {
				return fmt.Sprintf("%d pods, want %d; status %+v, %v", len(l.Items), n, rc.Status, err)
			}
			for _, p := range l.Items {
				if ref := metav1.GetControllerOf(&p); ref == nil || ref.Kind != "ReplicationController" || ref.APIVersion != "v1" {
					return fmt.Sprintf("pod %s: owner %v", p.Name, ref)
				}
			}
			return ""
		})
	}
	edit := func(f func(*corev1.ReplicationController)) {
		t.Helper()
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			rc, err := c.CoreV1().ReplicationControllers("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			f(rc)
			_, err = c.CoreV1().ReplicationControllers("default").Update(t.Context(), rc, metav1.UpdateOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	settled(3)
	edit(func(rc *corev1.ReplicationController) { *rc.Spec.Replicas = 1 })
	settled(1)
	c.Settle(t)
	before := c.Writes()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.Items[0].Annotations = map[string]string{"x": "y"} // reconciles
	if _, err := c.CoreV1().Pods("default").Update(t.Context(), &l.Items[0], metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}

func TestStatusSurvivesTheView(t *testing.T) {
	rc := newRC(1)
	rc.Status = corev1.ReplicationControllerStatus{
		Replicas: 5, FullyLabeledReplicas: 4, ReadyReplicas: 3, AvailableReplicas: 2, ObservedGeneration: 1,
		Conditions: []corev1.ReplicationControllerCondition{{Type: corev1.ReplicationControllerReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "quota"}},
	}
	if got := statusOf(view(rc)); !equality.Semantic.DeepEqual(got, rc.Status) {
		t.Errorf("got  %+v\nwant %+v", got, rc.Status)
	}
}
