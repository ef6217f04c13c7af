package nodettl

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestStepsHoldAroundTheirThresholds(t *testing.T) {
	for _, x := range []struct{ nodes, from, want int }{
		{1, 0, 0}, {100, 0, 0}, {101, 0, 1}, {95, 1, 1}, {89, 1, 0}, {5000, 0, 4}, {1850, 4, 4}, {1, 4, 0},
	} {
		if got := stepFor(x.nodes, x.from); got != x.want {
			t.Errorf("%d nodes, coming from step %d: step %d, want %d", x.nodes, x.from, got, x.want)
		}
	}
}

func TestNodesAreAnnotatedOnce(t *testing.T) {
	c := runtimetest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	c.Run(t, map[string]runtime.Builder{"nodettl": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	runtimetest.Eventually(t, func() string {
		n, err := c.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil || n.Annotations[corev1.ObjectTTLAnnotationKey] != "0" {
			return "the node has no annotation"
		}
		return ""
	})
	c.Settle(t)
	if w := c.Writes(); w != 1 {
		t.Errorf("%d writes", w)
	}
}
