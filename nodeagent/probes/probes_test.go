package probes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
)

type execFunc func(id string, cmd []string) error

func (f execFunc) ExecSync(_ context.Context, id string, cmd []string, _ time.Duration) ([]byte, []byte, error) {
	return []byte("out"), nil, f(id, cmd)
}

func hostPort(t *testing.T, addr string) (string, int) {
	t.Helper()
	h, p, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return h, n
}

func TestHTTP(t *testing.T) {
	var seen http.Header
	var host string
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { seen, host = r.Header, r.Host })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/bad", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	mux.HandleFunc("/query", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("a") != "1" {
			w.WriteHeader(404)
		}
	})
	block := make(chan struct{})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-block })
	for _, tls := range []bool{false, true} {
		s := httptest.NewUnstartedServer(mux)
		scheme := v1.URISchemeHTTP
		if tls {
			scheme = v1.URISchemeHTTPS
			s.StartTLS()
		} else {
			s.Start()
		}
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		ip, port := hostPort(t, u.Host)
		target := Target{PodIP: ip, Container: &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}}
		for path, want := range map[string]Result{"/ok": Success, "/bad": Failure, "/here": Failure, "/away": Success, "/query?a=1": Success, "/none": Failure} {
			p := &v1.Probe{TimeoutSeconds: 10, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: path, Port: intstr.FromString("web"), Scheme: scheme,
				HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "example.test"}, {Name: "X-A", Value: "b"}}}}}
			if got, msg := Once(context.Background(), nil, p, target); got != want {
				t.Errorf("tls %v %s: %v (%s), want %v", tls, path, got, msg, want)
			}
		}
		if host != "example.test" || seen.Get("X-A") != "b" || seen.Get("User-Agent") != "kube-probe/1.37" {
			t.Errorf("host %q, headers %v", host, seen)
		}
		p := &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/slow", Port: intstr.FromInt32(int32(port)), Scheme: scheme}}}
		if got, _ := Once(context.Background(), nil, p, target); got != Failure {
			t.Errorf("an answer after the timeout: %v", got)
		}
		defer s.Close()
	}
	close(block)
}

func TestTCPAndGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ip, port := hostPort(t, l.Addr().String())
	g := grpc.NewServer()
	h := health.NewServer()
	healthpb.RegisterHealthServer(g, h)
	h.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	go g.Serve(l)
	target := Target{PodIP: ip, Container: &v1.Container{}}
	tcp := &v1.Probe{TimeoutSeconds: 10, ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(int32(port))}}}
	if got, msg := Once(context.Background(), nil, tcp, target); got != Success {
		t.Errorf("tcp: %v %s", got, msg)
	}
	for service, want := range map[string]Result{"": Success, "down": Failure, "unknown": Failure} {
		p := &v1.Probe{TimeoutSeconds: 10, ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: int32(port), Service: &service}}}
		if got, msg := Once(context.Background(), nil, p, target); got != want {
			t.Errorf("grpc %q: %v %s", service, got, msg)
		}
	}
	g.Stop()
	if got, _ := Once(context.Background(), nil, tcp, target); got != Failure {
		t.Errorf("tcp to a closed port: %v", got)
	}
}

func TestExec(t *testing.T) {
	p := &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"x"}}}}
	for _, c := range []struct {
		err  error
		want Result
	}{{nil, Success}, {&cri.ExitError{Code: 1}, Failure}, {fmt.Errorf("%w", cri.ErrExecTimeout), Failure}, {fmt.Errorf("runtime is down"), Unknown}} {
		if got, _ := Once(context.Background(), execFunc(func(string, []string) error { return c.err }), p, Target{}); got != c.want {
			t.Errorf("%v: got %v, want %v", c.err, got, c.want)
		}
	}
}

func TestThresholds(t *testing.T) {
	c := counter{probe: &v1.Probe{FailureThreshold: 3, SuccessThreshold: 2}}
	for i, step := range []struct {
		r      Result
		turned bool
	}{{Failure, false}, {Failure, false}, {Success, false}, {Failure, false}, {Failure, false}, {Unknown, false}, {Failure, true}, {Success, false}, {Success, true}} {
		if turned, _ := c.count(step.r); turned != step.turned {
			t.Fatalf("result %d: turned %v", i, turned)
		}
	}
}

// rig is a manager over a container whose probes the test answers.
type rig struct {
	Manager
	ok      sync.Map // first word of a command to bool
	calls   sync.Map
	changed chan types.UID
}

func newRig() *rig {
	r := &rig{changed: make(chan types.UID, 100)}
	r.Exec = execFunc(func(_ string, cmd []string) error {
		n, _ := r.calls.LoadOrStore(cmd[0], new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		if v, _ := r.ok.Load(cmd[0]); v == true {
			return nil
		}
		return &cri.ExitError{Code: 1}
	})
	r.Changed = func(u types.UID) { r.changed <- u }
	return r
}

func (r *rig) count(cmd string) int64 {
	n, ok := r.calls.Load(cmd)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

func (r *rig) until(t *testing.T, what string, f func(State) bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		if f(r.States("u")["id"]) {
			return
		}
		select {
		case <-r.changed:
		case <-deadline:
			t.Fatalf("never %s: %+v", what, r.States("u")["id"])
		}
	}
}

func probe(cmd string) *v1.Probe {
	return &v1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{cmd}}}}
}

func TestStartupGoesBeforeTheOthers(t *testing.T) {
	r := newRig()
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); r.Wait() }()
	start := probe("startup")
	start.FailureThreshold = 1000
	c := &v1.Container{Name: "c", StartupProbe: start, LivenessProbe: probe("liveness"), ReadinessProbe: probe("readiness")}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	r.ok.Store("liveness", true)
	r.ok.Store("readiness", true)
	run := []Instance{{ID: "id", Container: c, StartedAt: time.Now()}}
	r.Sync(ctx, pod, "", run, false)
	deadline := time.Now().Add(time.Minute)
	for r.count("startup") < 2 {
		if time.Now().After(deadline) {
			t.Fatal("the startup probe is not made")
		}
		<-time.After(10 * time.Millisecond)
	}
	if s := r.States("u")["id"]; s.Started || s.Ready || r.count("liveness")+r.count("readiness") > 0 {
		t.Fatalf("before startup: %+v, liveness %d, readiness %d", s, r.count("liveness"), r.count("readiness"))
	}
	r.ok.Store("startup", true)
	r.until(t, "ready", func(s State) bool { return s.Started && s.Ready && !s.LivenessFailed })
	r.ok.Store("readiness", false)
	r.until(t, "unready", func(s State) bool { return !s.Ready })
	r.ok.Store("liveness", false)
	r.until(t, "failed", func(s State) bool { return s.LivenessFailed })
	r.Sync(ctx, pod, "", nil, false)
	if len(r.States("u")) != 0 {
		t.Error("a container that stopped still has probes")
	}
}

func TestAnEarlierAgentsWordStaysUntilAProbeSaysOtherwise(t *testing.T) {
	r := newRig()
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); r.Wait() }()
	c := &v1.Container{Name: "c", StartupProbe: probe("startup"), ReadinessProbe: probe("readiness")}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	r.Sync(ctx, pod, "", []Instance{{ID: "id", Container: c, StartedAt: time.Now().Add(-time.Hour), WasStarted: true, WasReady: true}}, false)
	if s := r.States("u")["id"]; !s.Started || !s.Ready {
		t.Fatalf("taken over as %+v", s)
	}
	r.until(t, "unready", func(s State) bool { return !s.Ready })
	if r.count("startup") != 0 {
		t.Error("a container that had started is asked again whether it has")
	}
}

func TestTerminatingPodsAreNotRestarted(t *testing.T) {
	r := newRig()
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); r.Wait() }()
	c := &v1.Container{Name: "c", LivenessProbe: probe("liveness"), ReadinessProbe: probe("readiness")}
	c.LivenessProbe.InitialDelaySeconds = 2
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	r.ok.Store("readiness", true)
	run := []Instance{{ID: "id", Container: c, StartedAt: time.Now()}}
	r.Sync(ctx, pod, "", run, false)
	r.Sync(ctx, pod, "", run, true)
	r.until(t, "ready", func(s State) bool { return s.Ready })
	r.ok.Store("readiness", false)
	r.until(t, "unready", func(s State) bool { return !s.Ready })
	deadline := time.Now().Add(time.Minute)
	for before := r.count("readiness"); r.count("readiness") < before+4; { // past the liveness probe's delay
		if time.Now().After(deadline) {
			t.Fatal("the readiness probe is not made any more")
		}
		<-time.After(20 * time.Millisecond)
	}
	if r.count("liveness") != 0 {
		t.Error("the liveness probe of a pod that ends was made")
	}
}
