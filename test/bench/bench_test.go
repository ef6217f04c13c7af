package bench

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	access "github.com/tripod-cluster/tripod/test/cluster"
	"github.com/tripod-cluster/tripod/test/figure"
)

var cluster access.Cluster

func TestMain(m *testing.M) {
	var err error
	if cluster, err = access.FromEnv(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestBench measures the daemons at rest first, before anything has made them work.
func TestBench(t *testing.T) {
	eventually(t, 2*time.Minute, "the cluster is whole", cluster.Whole)
	for _, part := range []struct {
		name    string
		measure func(t *testing.T) []figure.Figure
	}{
		{"idle", idle},
		{"writes", writes},
		{"pods", pods},
		{"endpoints", endpoints},
	} {
		t.Run(part.name, func(t *testing.T) {
			figures := part.measure(t)
			if err := figure.Publish(os.Getenv("TRIPOD_BENCH"), part.name, append(figures, figure.Load())); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// eventually waits until f says nil, and fails with what it said last.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// client goes through the peer at addr, or through the virtual address when that is empty, over a connection of its own.
func client(t *testing.T, addr string) *kubernetes.Clientset {
	t.Helper()
	c, err := cluster.Client(addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// namespace makes a namespace in which pods can be made. Afterwards it is removed, and is gone when the part ends.
func namespace(t *testing.T, part string) string {
	t.Helper()
	c := client(t, "")
	ctx := context.Background()
	ns, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-" + part + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("remove namespace %s: %v", ns.Name, err)
		}
		eventually(t, 3*time.Minute, "namespace "+ns.Name+" is gone", func() error {
			_, err := c.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("get it: %v", err)
		})
	})
	eventually(t, time.Minute, "the default ServiceAccount of "+ns.Name, func() error {
		_, err := c.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}
