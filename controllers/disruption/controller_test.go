package disruption

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	scalefake "k8s.io/client-go/scale/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
	"github.com/tripod-cluster/tripod/controllers/runtime/scales"
)

func start(t *testing.T, c *runtimetest.Cluster, s *scales.Client) {
	c.Run(t, map[string]runtime.Builder{"disruption": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q, s) }})
}

func waitFor(t *testing.T, c *runtimetest.Cluster, want string) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		pdb, err := c.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		reason := ""
		for _, c := range pdb.Status.Conditions {
			reason = c.Reason
		}
		got := fmt.Sprintf("%d of %d %s", pdb.Status.DisruptionsAllowed, pdb.Status.ExpectedPods, reason)
		if got != want {
			return fmt.Sprintf("allowed %s, want %s", got, want)
		}
		return ""
	})
}

func owned(p *corev1.Pod, kind schema.GroupVersionKind, owner metav1.Object) *corev1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}
	return p
}

func TestScaleOfADeployment(t *testing.T) {
	n, other := int32(4), int32(9)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &n}}
	objects := []apiruntime.Object{d, newBudget("", "2")}
	for _, name := range []string{"old", "new"} {
		rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}}, Spec: appsv1.ReplicaSetSpec{Replicas: &other}}
		rs.UID = types.UID("rs-" + name)
		objects = append(objects, rs, owned(parsePods(name + "-1")[0], appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), rs), owned(parsePods(name + "-2")[0], appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), rs))
	}
	c := runtimetest.New(t, objects...)
	start(t, c, nil)
	waitFor(t, c, "2 of 4 SufficientPods")
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "old-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "1 of 4 SufficientPods")
	c.Settle(t)
	before := c.Writes()
	p, err := c.CoreV1().Pods("default").Get(t.Context(), "new-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Annotations = map[string]string{"x": "y"} // reconciles
	if _, err := c.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}

func TestScaleOfACustomResource(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, meta.RESTScopeNamespace)
	getter := &scalefake.FakeScaleClient{}
	getter.AddReactor("get", "farms", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return true, &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "farm", Namespace: "default", UID: "farm"}, Spec: autoscalingv1.ScaleSpec{Replicas: 2}}, nil
	})
	farm := &metav1.ObjectMeta{Name: "farm", Namespace: "default", UID: "farm"}
	c := runtimetest.New(t, newBudget("", "1"), owned(parsePods("a")[0], kind, farm), owned(parsePods("b")[0], kind, farm))
	start(t, c, &scales.Client{Mapper: mapper, Getter: getter})
	waitFor(t, c, "1 of 2 SufficientPods")
}

func TestUnknownControllerBlocksWithAReason(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}
	budget := newBudget("", "1")
	c := runtimetest.New(t, budget, owned(parsePods("a")[0], kind, &metav1.ObjectMeta{Name: "farm", UID: "farm"}))
	ctl := newController(t, c)
	if _, err := ctl.reconcile(context.Background(), "default/web"); err == nil {
		t.Error("no error, so it is not tried again")
	}
	waitFor(t, c, "0 of 0 SyncFailed")
}

func TestPodsWithoutAControllerDoNotBlock(t *testing.T) {
	c := runtimetest.New(t, newBudget("", "1"), parsePods("a")[0], parsePods("b")[0])
	start(t, c, nil)
	waitFor(t, c, "1 of 2 SufficientPods")
}

func TestMarkOfAPodThatStaysIsTakenBack(t *testing.T) {
	p := parsePods("a")[0]
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-2 * staleAfter))})
	c := runtimetest.New(t, p)
	c.Clock = clocktesting.NewFakeClock(now)
	start(t, c, nil)
	runtimetest.Eventually(t, func() string {
		p, err := c.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
				return "the mark is still there"
			}
		}
		return ""
	})
}

// newController makes one whose caches are filled and that does not run.
func newController(t *testing.T, c *runtimetest.Cluster) *controller {
	t.Helper()
	core, apps, budgets := c.Informers.Core().V1(), c.Informers.Apps().V1(), c.Informers.Policy().V1().PodDisruptionBudgets()
	ctl := &controller{
		client: c.Clientset, budgets: budgets.Lister(), pods: core.Pods().Lister(), deployments: apps.Deployments().Lister(),
		sets: apps.ReplicaSets().Lister(), stateful: apps.StatefulSets().Lister(), replicators: core.ReplicationControllers().Lister(),
		events: c.Events, clock: c.Clock,
	}
	c.Informers.StartWithContext(t.Context())
	c.Informers.WaitForCacheSyncWithContext(t.Context())
	return ctl
}
