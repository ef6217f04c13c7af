package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/tripod-cluster/tripod/dataplane"
)

// sink records what Watch says.
type sink struct {
	mu    sync.Mutex
	svcs  map[dataplane.ID]*dataplane.Service
	ready bool
	early int // services known when Ready came
}

func (s *sink) Set(v *dataplane.Service) { s.mu.Lock(); defer s.mu.Unlock(); s.svcs[v.ID] = v }
func (s *sink) Remove(id dataplane.ID)   { s.mu.Lock(); defer s.mu.Unlock(); delete(s.svcs, id) }
func (s *sink) Ready()                   { s.mu.Lock(); defer s.mu.Unlock(); s.ready, s.early = true, len(s.svcs) }
func (s *sink) Healthy() error           { return nil }

func (s *sink) wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		ok := cond()
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-limit.C:
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

func TestWatchFollowsTheAPI(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	first := slice(discoveryv1.AddressTypeIPv4, ep("10.244.1.5", "n1"))
	client := fake.NewSimpleClientset(service(nil), first)
	out := &sink{svcs: map[dataplane.ID]*dataplane.Service{}}
	done := make(chan error, 1)
	go func() { done <- Watch(ctx, Config{Client: client, NodeName: "n1"}, out) }()
	id := dataplane.ID{Namespace: "default", Name: "web", Port: "http", Protocol: dataplane.TCP, Family: dataplane.IPv4}
	out.wait(t, "the service", func() bool { return out.ready && out.svcs[id] != nil && len(out.svcs[id].Endpoints) == 1 })
	if out.early != 1 {
		t.Errorf("ready with %d services known, want 1", out.early)
	}

	more := slice(discoveryv1.AddressTypeIPv4, ep("10.244.1.5", "n1"), ep("10.244.2.6", "n2"))
	if _, err := client.DiscoveryV1().EndpointSlices("default").Update(ctx, more, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "a second endpoint", func() bool { return len(out.svcs[id].Endpoints) == 2 })

	renamed := service(func(s *corev1.Service) { s.Spec.Ports[0].Name = "other" })
	if _, err := client.CoreV1().Services("default").Update(ctx, renamed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	other := id
	other.Port = "other"
	out.wait(t, "the renamed port", func() bool { return out.svcs[id] == nil && out.svcs[other] != nil })

	if err := client.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out.wait(t, "the removal", func() bool { return len(out.svcs) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch ended with %v", err)
	}
}

func TestHealthCheckNodePortTellsWhetherToSendConnectionsHere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	h := newHealthServers(&sink{}, nil)
	defer h.close()
	ask := func() (code int, weight string, local float64) {
		t.Helper()
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"), body["localEndpoints"].(float64)
	}
	svc := &dataplane.Service{HealthCheckNodePort: uint16(port), ExternalLocal: true, NodePort: 30080}
	for i, local := range []bool{true, false, true} {
		s := *svc
		s.Endpoints = []dataplane.Endpoint{{Ready: true, Local: local}}
		h.update("default/web", []*dataplane.Service{&s})
		code, weight, n := ask()
		if local && (code != 200 || weight != "1" || n != 1) || !local && (code != 503 || weight != "0" || n != 0) {
			t.Errorf("step %d, local endpoint %v: code %d, weight %s, endpoints %v", i, local, code, weight, n)
		}
	}
	h.update("default/web", nil)
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
		c.Close()
		t.Error("the port is open without the service")
	}
}
