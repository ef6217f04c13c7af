package replicaset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/retry"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func newSet(n int32) *appsv1.ReplicaSet {
	l := map[string]string{"app": "web"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.ReplicaSetSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}}},
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

func start(t *testing.T, c *runtimetest.Cluster) {
	c.Run(t, map[string]runtime.Builder{"replicaset": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
}

func pods(t *testing.T, c *runtimetest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func scale(t *testing.T, c *runtimetest.Cluster, n int32) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		rs, err := c.AppsV1().ReplicaSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		rs.Spec.Replicas = &n
		_, err = c.AppsV1().ReplicaSets("default").Update(t.Context(), rs, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func waitSettled(t *testing.T, c *runtimetest.Cluster, n int) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		rs, err := c.AppsV1().ReplicaSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if got := len(pods(t, c)); got != n || int(rs.Status.Replicas) != n {
			return fmt.Sprintf("%d pods, status %d, want %d", got, rs.Status.Replicas, n)
		}
		return ""
	})
}

func TestPodsFollowTheSize(t *testing.T) {
	c := runtimetest.New(t, newSet(3))
	start(t, c)
	waitSettled(t, c, 3)
	for _, p := range pods(t, c) {
		if ref := metav1.GetControllerOf(&p); ref == nil || ref.Kind != "ReplicaSet" || ref.Name != "web" || p.Labels["app"] != "web" {
			t.Errorf("pod %s: owner %v, labels %v", p.Name, ref, p.Labels)
		}
	}
	scale(t, c, 40)
	waitSettled(t, c, 40)
	scale(t, c, 1)
	waitSettled(t, c, 1)
	if err := c.CoreV1().Pods("default").Delete(t.Context(), pods(t, c)[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitSettled(t, c, 1)
	// Never one too many: 3 + 37 + 1 were created in all.
	created := 0
	for _, a := range c.Actions() {
		if a.Matches("create", "pods") {
			created++
		}
	}
	if created != 41 {
		t.Errorf("%d pods were created, want 41", created)
	}
}

func TestSettledSetWritesNothing(t *testing.T) {
	c := runtimetest.New(t, newSet(2))
	start(t, c)
	waitSettled(t, c, 2)
	var before int64
	runtimetest.Eventually(t, func() string { // until the last status is written
		if w := c.Writes(); w != before {
			before = w
			return "still writing"
		}
		return ""
	})
	// An event that means nothing.
	rs, _ := c.AppsV1().ReplicaSets("default").Get(t.Context(), "web", metav1.GetOptions{})
	rs.Annotations = map[string]string{"x": "y"}
	if _, err := c.AppsV1().ReplicaSets("default").UpdateStatus(t.Context(), rs, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := pods(t, c)[0]
	p.Annotations = map[string]string{"x": "y"}
	if _, err := c.CoreV1().Pods("default").UpdateStatus(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale(t, c, 3) // a later event, to know that the others have been handled
	waitSettled(t, c, 3)
	for _, a := range c.Actions() {
		if a.Matches("delete", "pods") {
			t.Error("a pod was deleted")
		}
	}
}

func TestOrphansAreAdoptedAndStrangersReleased(t *testing.T) {
	orphan := pod("orphan")
	orphan.Labels = map[string]string{"app": "web"}
	foreign := pod("foreign")
	foreign.Labels = map[string]string{"app": "web"}
	yes := true
	foreign.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Other", Name: "x", UID: "x", Controller: &yes}}
	c := runtimetest.New(t, newSet(1), orphan, foreign)
	start(t, c)
	runtimetest.Eventually(t, func() string {
		p, err := c.CoreV1().Pods("default").Get(t.Context(), "orphan", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if metav1.GetControllerOf(p) == nil {
			return "not adopted"
		}
		return ""
	})
	runtimetest.Eventually(t, func() string {
		if n := len(pods(t, c)); n != 2 {
			return fmt.Sprintf("%d pods, want the adopted and the foreign one", n)
		}
		return ""
	})
	// Relabelled, it is let go and replaced.
	p, _ := c.CoreV1().Pods("default").Get(t.Context(), "orphan", metav1.GetOptions{})
	p.Labels = map[string]string{"app": "debug"}
	if _, err := c.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		p, err := c.CoreV1().Pods("default").Get(t.Context(), "orphan", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if metav1.GetControllerOf(p) != nil {
			return "not released"
		}
		if n := len(pods(t, c)); n != 3 {
			return fmt.Sprintf("%d pods, want a replacement", n)
		}
		return ""
	})
}

func TestFailedCreationShowsAndIsRetried(t *testing.T) {
	c := runtimetest.New(t, newSet(2))
	failures := 3
	c.PrependReactor("create", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		if failures > 0 {
			failures--
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", fmt.Errorf("exceeded quota"))
		}
		return false, nil, nil
	})
	start(t, c)
	waitSettled(t, c, 2)
	runtimetest.Eventually(t, func() string {
		rs, _ := c.AppsV1().ReplicaSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if len(rs.Status.Conditions) != 0 {
			return fmt.Sprint("conditions stay: ", rs.Status.Conditions)
		}
		return ""
	})
	found := false
	for _, e := range c.Events.All() {
		found = found || len(e) > 13 && e[:13] == "FailedCreate:"
	}
	if !found {
		t.Errorf("no event tells of the failure: %v", c.Events.All())
	}
}
