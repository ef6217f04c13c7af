package deployment

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func start(t *testing.T, c *runtimetest.Cluster) *runtime.Group {
	t.Helper()
	return c.Run(t, map[string]runtime.Builder{"deployment": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
}

func web() *appsv1.Deployment {
	d := deploymentOf(2, intstr.FromInt32(1), intstr.FromInt32(0))
	d.Name, d.Namespace = "web", "default"
	return d
}

// TestHashCollision: the name that the template's hash gives is taken by a replica
// set of another template. The collision is counted, the next hash is another
// one, and the replica set in the way stays as it is.
func TestHashCollision(t *testing.T) {
	d := web()
	hash, err := templateHash(&d.Spec.Template, nil)
	if err != nil {
		t.Fatal(err)
	}
	taken := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: setName(d.Name, hash), Namespace: "default", Labels: map[string]string{"of": "another"}},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"of": "another"}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "another"}}}},
		},
	}
	c := runtimetest.New(t, d, taken)
	start(t, c)
	runtimetest.Eventually(t, func() string {
		got, err := c.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if n := got.Status.CollisionCount; n == nil || *n != 1 {
			return fmt.Sprintf("collisions: %v", n)
		}
		l, err := c.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 2 {
			return fmt.Sprintf("replica sets: %v, %v", l, err)
		}
		return ""
	})
	c.Settle(t)
	left, err := c.AppsV1().ReplicaSets("default").Get(t.Context(), taken.Name, metav1.GetOptions{})
	if err != nil || left.Spec.Template.Spec.Containers[0].Image != "another" || len(left.OwnerReferences) > 0 {
		t.Errorf("the replica set in the way: %v, %v", left, err)
	}
}

func TestExplainNamesWhatIsWaitedFor(t *testing.T) {
	paused := web()
	paused.Name, paused.UID, paused.Spec.Paused = "paused", "another", true
	c := runtimetest.New(t, web(), paused)
	g := start(t, c)
	is := func(name, words, by string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			waits, err := g.Explain("deployment", "default", name)
			for _, w := range waits {
				if strings.Contains(w.For, words) && w.By == by {
					return ""
				}
			}
			return fmt.Sprintf("explained as %v, %v", waits, err)
		})
	}
	// Nobody makes pods here.
	is("web", "2 pods of replica set", "controller replicaset")
	is("paused", "spec.paused is set", "you")
	if _, err := g.Explain("deployment", "default", "none"); err == nil {
		t.Error("one that is not there is explained")
	}
}
