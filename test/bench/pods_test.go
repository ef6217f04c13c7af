package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/test/figure"
)

const (
	podCount = 30
	patience = 3 * time.Minute // for one pod, or for all at once
)

// pods measures from the request that creates a pod until a watch shows it bound and Running. The image is on the nodes
// already.
func pods(t *testing.T) []figure.Figure {
	ns := namespace(t, "pods")
	c := client(t, "")
	names := func(kind string) []string {
		var all []string
		for i := range podCount {
			all = append(all, fmt.Sprintf("%s-%02d", kind, i))
		}
		return all
	}
	var s starts
	for _, name := range names("one") {
		one, _ := start(t, c, ns, []string{name})
		s.bound, s.running = append(s.bound, one.bound...), append(s.running, one.running...)
	}
	remove(t, c, ns)
	burst, took := start(t, c, ns, names("many"))
	remove(t, c, ns)

	var figures []figure.Figure
	add := func(how string, s starts) {
		figures = append(figures, figure.Latency("pod create to bound, "+how, s.bound)...)
		figures = append(figures, figure.Latency("pod create to Running, "+how, s.running)...)
	}
	add(fmt.Sprintf("%d one by one", podCount), s)
	add(fmt.Sprintf("%d at once", podCount), burst)
	return append(figures, figure.Alone(fmt.Sprintf("pods started, %d at once, 3 nodes", podCount), "/s", podCount/took.Seconds()))
}

// starts is how long pods took from their creation.
type starts struct{ bound, running []time.Duration }

// start creates the pods and waits until all of them run; it returns how long each and how long all took.
func start(t *testing.T, c kubernetes.Interface, ns string, names []string) (starts, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := c.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	mine := map[string]bool{}
	for _, name := range names {
		mine[name] = true
	}
	failed := make(chan error, len(names))
	began := time.Now() // for all of them: a request that waits for its turn counts
	for _, name := range names {
		go func() {
			_, err := c.CoreV1().Pods(ns).Create(ctx, pod(name), metav1.CreateOptions{})
			if err != nil {
				failed <- fmt.Errorf("create pod %s: %w", name, err)
			}
		}()
	}
	var s starts
	bound, running := map[string]bool{}, map[string]bool{}
	for len(running) < len(names) {
		var e watch.Event
		var open bool
		select {
		case err := <-failed:
			t.Fatal(err)
		case e, open = <-w.ResultChan():
		}
		took := time.Since(began)
		p, is := e.Object.(*corev1.Pod)
		if !open || !is {
			t.Fatalf("%d of %d pods run; the watch ended: %v %v", len(running), len(names), ctx.Err(), e.Object)
		}
		if !mine[p.Name] {
			continue
		}
		if p.Spec.NodeName != "" && !bound[p.Name] {
			bound[p.Name] = true
			s.bound = append(s.bound, took)
		}
		switch {
		case p.Status.Phase == corev1.PodRunning && !running[p.Name]:
			running[p.Name] = true
			s.running = append(s.running, took)
		case p.Status.Phase == corev1.PodFailed:
			t.Fatalf("pod %s failed: %s %s", p.Name, p.Status.Reason, p.Status.Message)
		}
	}
	return s, time.Since(began)
}

func pod(name string) *corev1.Pod {
	no, grace := false, int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  &no,
			Containers:                    []corev1.Container{{Name: "c", Image: "tripod.local/client:1", Command: []string{"sleep", "infinity"}}},
		},
	}
}

// remove deletes the pods and waits until they are gone, so that their end is not measured with others' beginning.
func remove(t *testing.T, c kubernetes.Interface, ns string) {
	t.Helper()
	ctx := context.Background()
	if err := c.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the pods are gone", func() error {
		l, err := c.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(l.Items) > 0 {
			err = fmt.Errorf("%d are left", len(l.Items))
		}
		return err
	})
}
