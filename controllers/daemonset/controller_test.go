package daemonset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func start(t *testing.T, c *runtimetest.Cluster) {
	c.Run(t, map[string]runtime.Builder{"daemonset": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
}

func pods(t *testing.T, c *runtimetest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// run makes every pod run, ready, on the node that it is pinned to.
func run(t *testing.T, c *runtimetest.Cluster) {
	t.Helper()
	for _, p := range pods(t, c) {
		if p.Spec.NodeName != "" {
			continue
		}
		p.Spec.NodeName = nodeOf(&p)
		p.Status = podOn("", "").Status
		_, _ = c.CoreV1().Pods("default").Update(t.Context(), &p, metav1.UpdateOptions{}) // what lost a race is tried again
	}
}

func edit(t *testing.T, c *runtimetest.Cluster, f func(*appsv1.DaemonSet)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		ds, err := c.AppsV1().DaemonSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(ds)
		_, err = c.AppsV1().DaemonSets("default").Update(t.Context(), ds, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until n nodes have one pod each, of the image, as the status says.
func waitFor(t *testing.T, c *runtimetest.Cluster, image string, n int) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		run(t, c)
		ds, err := c.AppsV1().DaemonSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		nodes := map[string]bool{}
		all := pods(t, c)
		for _, p := range all {
			if p.Spec.Containers[0].Image != image {
				return "a pod is of " + p.Spec.Containers[0].Image
			}
			nodes[p.Spec.NodeName] = true
		}
		s := ds.Status
		if len(all) != n || len(nodes) != n || int(s.NumberAvailable) != n || int(s.UpdatedNumberScheduled) != n || s.ObservedGeneration != ds.Generation {
			return fmt.Sprintf("%d pods on %d nodes, want %d; status %+v", len(all), len(nodes), n, s)
		}
		return ""
	})
}

func TestPodsFollowNodesAndTemplate(t *testing.T) {
	c := runtimetest.New(t, newSet(), newNode("n1"), newNode("n2"))
	start(t, c)
	waitFor(t, c, "v1", 2)
	if _, err := c.CoreV1().Nodes().Create(t.Context(), newNode("n3"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "v1", 3)
	n, err := c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}}
	if _, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "v1", 2)

	edit(t, c, func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "v2" })
	waitFor(t, c, "v2", 2)
	edit(t, c, surging(1))
	edit(t, c, func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "v3" })
	waitFor(t, c, "v3", 2)
	edit(t, c, func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "v1" })
	waitFor(t, c, "v1", 2)
	l, err := c.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != 3 {
		t.Errorf("%d revisions, want one for each template", len(l.Items))
	}
	zero := int32(0)
	edit(t, c, func(ds *appsv1.DaemonSet) { ds.Spec.RevisionHistoryLimit = &zero })
	runtimetest.Eventually(t, func() string {
		l, err := c.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 1 {
			return fmt.Sprintf("%d revisions, want the current one only: %v", len(l.Items), err)
		}
		return ""
	})
}

func TestSettledSetWritesNothing(t *testing.T) {
	c := runtimetest.New(t, newSet(), newNode("n1"), newNode("n2"))
	start(t, c)
	waitFor(t, c, "v1", 2)
	c.Settle(t)
	before := c.Writes()
	n, err := c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Labels["zone"] = "b" // reconciles
	if _, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}

func TestOrphansAreAdopted(t *testing.T) {
	orphan := podOn("n1", "orphan")
	orphan.Labels = map[string]string{"app": "web"}
	ds := newSet()
	ds.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
	c := runtimetest.New(t, ds, newNode("n1"), orphan)
	start(t, c)
	runtimetest.Eventually(t, func() string {
		all := pods(t, c)
		if len(all) != 1 || metav1.GetControllerOf(&all[0]) == nil {
			return fmt.Sprintf("%d pods, owner of the first %v", len(all), metav1.GetControllerOf(&all[0]))
		}
		return ""
	})
}
