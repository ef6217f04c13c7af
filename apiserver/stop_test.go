package apiserver_test

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStopIsGraceful is the last test of the process, by its file: it stops the one API server.
func TestStopIsGraceful(t *testing.T) {
	c := start(t)
	registered := func() (int, error) {
		r, err := c.store.Range(&pb.RangeRequest{Key: []byte("/registry/masterleases/"), RangeEnd: []byte("/registry/masterleases0")})
		if err != nil {
			return 0, err
		}
		return len(r.Kvs), nil
	}
	eventually(t, "this peer is registered", func() error {
		if n, err := registered(); err != nil || n != 1 {
			return fmt.Errorf("%d peers: %w", n, err)
		}
		return nil
	})
	w, err := c.admin(t).CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	c.stop()
	select {
	case err := <-c.done:
		c.done <- nil // for TestMain
		if err != nil {
			t.Fatalf("a stop with an open watch: %v", err)
		}
	case <-time.After(within):
		t.Fatal("the API server did not stop")
	}
	for range w.ResultChan() { // ends: the server closed it
	}
	if n, err := registered(); err != nil || n != 0 {
		t.Errorf("%d peers are registered after the stop (%v), want none", n, err)
	}
	if c.server.Ready() == nil {
		t.Error("a stopped API server says that it is ready")
	}
}
