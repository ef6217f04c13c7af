package resourcequota

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/util/retry"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func newQuota(hard corev1.ResourceList) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
}

// pods counts pods, from the API server.
func pods(t *testing.T, c *runtimetest.Cluster) Usage {
	return func(namespace string, _ *corev1.ResourceQuotaSpec) (corev1.ResourceList, error) {
		l, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return list("pods", fmt.Sprint(len(l.Items))), nil
	}
}

func start(t *testing.T, c *runtimetest.Cluster, usage Usage, objects ...apiruntime.Object) {
	gv := schema.GroupVersion{Group: "apps", Version: "v1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{gv})
	mapper.Add(gv.WithKind("Deployment"), meta.RESTScopeNamespace)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	m := metadatafake.NewSimpleMetadataClient(scheme, objects...)
	c.Run(t, map[string]runtime.Builder{"resourcequota": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q, m, mapper, usage) }})
}

func waitUsed(t *testing.T, c *runtimetest.Cluster, want corev1.ResourceList) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		q, err := c.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !same(q.Status, corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: want}) {
			return fmt.Sprintf("status %v, want %v used", q.Status, want)
		}
		return ""
	})
}

func TestUseFollowsTheObjects(t *testing.T) {
	c := runtimetest.New(t, newQuota(list("pods", "9", "count/deployments.apps", "5", "count/widgets.example.com", "5")))
	start(t, c, pods(t, c), &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "default"}})
	used := func(pods string) corev1.ResourceList {
		return list("pods", pods, "count/deployments.apps", "1", "count/widgets.example.com", "0")
	}
	waitUsed(t, c, used("0"))
	for _, name := range []string{"a", "b"} {
		if _, err := c.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waitUsed(t, c, used("2"))
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitUsed(t, c, used("1"))
	c.Settle(t)
	before := c.Writes()
	if _, err := c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	c.Settle(t) // longer than changes are gathered
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}

// TestWhatAdmissionAddedIsNotTakenAtOnce: the pod that was let in is not there yet.
func TestWhatAdmissionAddedIsNotTakenAtOnce(t *testing.T) {
	c := runtimetest.New(t, newQuota(list("pods", "9")))
	clock := clocktesting.NewFakeClock(metav1.Now().Time)
	c.Clock = clock
	start(t, c, pods(t, c))
	waitUsed(t, c, list("pods", "0"))
	c.Settle(t)
	clock.Step(2 * grace)
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		q, err := c.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err
		}
		q.Status.Used = list("pods", "1")
		_, err = c.CoreV1().ResourceQuotas("default").UpdateStatus(t.Context(), q, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	touch := func(name string) {
		t.Helper()
		if _, err := c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	touch("a")
	c.Settle(t)
	c.Settle(t)
	waitUsed(t, c, list("pods", "1"))
	clock.Step(2 * grace)
	touch("b")
	waitUsed(t, c, list("pods", "0"))
}

func TestWhatCannotBeCountedKeepsItsValue(t *testing.T) {
	q := newQuota(list("pods", "9"))
	q.Status = corev1.ResourceQuotaStatus{Hard: list("pods", "5"), Used: list("pods", "4")}
	c := runtimetest.New(t, q)
	var calls atomic.Int64
	start(t, c, func(string, *corev1.ResourceQuotaSpec) (corev1.ResourceList, error) {
		calls.Add(1)
		return nil, errors.New("who knows")
	})
	waitUsed(t, c, list("pods", "4"))
	runtimetest.Eventually(t, func() string {
		if calls.Load() < 2 {
			return "not tried again"
		}
		return ""
	})
}
