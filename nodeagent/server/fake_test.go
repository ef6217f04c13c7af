package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	ktypes "k8s.io/kubelet/pkg/types"

	"github.com/tripod-cluster/tripod/pki"
)

// fakeRuntime is a runtime with one pod, and the streaming server that real
// runtimes have.
type fakeRuntime struct {
	internalapi.RuntimeService // nothing else is called
	streams                    streaming.Server

	mu         sync.Mutex
	containers []*runtimeapi.Container
	logs       map[string]string // container ID → path
	execs      [][]string
}

func (f *fakeRuntime) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*runtimeapi.Container
	for _, c := range f.containers {
		match := filter.GetState() == nil || filter.State.State == c.State
		for k, v := range filter.GetLabelSelector() {
			match = match && c.Labels[k] == v
		}
		if match {
			out = append(out, c)
		}
	}
	return out, nil
}

func (f *fakeRuntime) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Id == id {
			return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id, State: c.State, LogPath: f.logs[id]}}, nil
		}
	}
	return nil, fmt.Errorf("container %s not found", id)
}

func (f *fakeRuntime) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return f.streams.GetExec(r)
}
func (f *fakeRuntime) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return f.streams.GetAttach(r)
}
func (f *fakeRuntime) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return f.streams.GetPortForward(r)
}

func (f *fakeRuntime) ExecSync(_ context.Context, id string, cmd []string, _ time.Duration) ([]byte, []byte, error) {
	return []byte(id + " ran " + strings.Join(cmd, " ")), nil, nil
}

// process is what runs in the fake's containers: it says which container and
// command it is, then echoes its input.
type process struct{ f *fakeRuntime }

func (p process) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, errw io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	p.f.mu.Lock()
	p.f.execs = append(p.f.execs, cmd)
	p.f.mu.Unlock()
	fmt.Fprintf(out, "%s %s\n", id, strings.Join(cmd, " "))
	if errw != nil {
		fmt.Fprint(errw, "warning\n")
	}
	if in != nil {
		_, _ = io.Copy(out, in)
	}
	return nil
}

func (p process) Attach(ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool, r <-chan remotecommand.TerminalSize) error {
	return p.Exec(ctx, id, []string{"attached"}, in, out, errw, tty, r)
}

func (p process) PortForward(_ context.Context, sandbox string, port int32, s io.ReadWriteCloser) error {
	defer s.Close()
	_, err := fmt.Fprintf(s, "%s port %d", sandbox, port)
	return err
}

// fakePods is the agent's side.
type fakePods struct {
	rt  *fakeRuntime
	pod *v1.Pod
}

func (p *fakePods) PodByName(ns, name string) (*v1.Pod, bool) {
	if ns == p.pod.Namespace && name == p.pod.Name {
		return p.pod, true
	}
	return nil, false
}
func (p *fakePods) AllPods() []*v1.Pod                                 { return []*v1.Pod{p.pod} }
func (p *fakePods) SandboxID(context.Context, *v1.Pod) (string, error) { return "sandbox", nil }
func (p *fakePods) Runtime() internalapi.RuntimeService                { return p.rt }
func (p *fakePods) Summary(context.Context) (*statsapi.Summary, error) {
	u, m := uint64(2_500_000_000), uint64(4096)
	cpu, mem := &statsapi.CPUStats{Time: metav1.Now(), UsageCoreNanoSeconds: &u}, &statsapi.MemoryStats{Time: metav1.Now(), WorkingSetBytes: &m}
	return &statsapi.Summary{Node: statsapi.NodeStats{NodeName: "n1", CPU: cpu, Memory: mem}, Pods: []statsapi.PodStats{{
		PodRef: statsapi.PodReference{Name: "web", Namespace: "default"}, CPU: cpu, Memory: mem,
		Containers: []statsapi.ContainerStats{{Name: "main", CPU: cpu, Memory: mem, StartTime: metav1.Now()}}}}}, nil
}

// node is a served node API and ways to call it.
type node struct {
	t      *testing.T
	ca     *pki.Authority
	srv    *Server
	url    string
	rt     *fakeRuntime
	pods   *fakePods
	client *fake.Clientset
	dir    string

	mu      sync.Mutex
	reviews []authorizationv1.SubjectAccessReviewSpec
	allowed map[string]bool // user/verb/subresource
	tokens  int
	health  error
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), allowed: map[string]bool{"apiserver/get/proxy": true, "apiserver/create/proxy": true, "apiserver/get/metrics": true, "apiserver/get/stats": true, "apiserver/get/log": true}}
	var err error
	if n.ca, err = pki.NewAuthority("kubernetes", time.Now()); err != nil {
		t.Fatal(err)
	}
	n.rt = &fakeRuntime{logs: map[string]string{}}
	cfg := streaming.DefaultConfig
	ss := httptest.NewUnstartedServer(nil)
	cfg.Addr = ss.Listener.Addr().String()
	if n.rt.streams, err = streaming.NewServer(cfg, process{n.rt}); err != nil {
		t.Fatal(err)
	}
	ss.Config.Handler = n.rt.streams
	ss.Start()
	t.Cleanup(ss.Close)

	n.pods = &fakePods{rt: n.rt, pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: types.UID("u1")},
		Spec:   v1.PodSpec{Containers: []v1.Container{{Name: "main"}, {Name: "slow"}}},
		Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "slow", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}}}}
	n.container("c1", "main", runtimeapi.ContainerState_CONTAINER_EXITED, 1, "one\n")
	n.container("c2", "main", runtimeapi.ContainerState_CONTAINER_RUNNING, 2, "two\nthree\n")

	n.client = fake.NewClientset()
	n.client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.reviews = append(n.reviews, r.Spec)
		ra := r.Spec.ResourceAttributes
		r.Status.Allowed = n.allowed[r.Spec.User+"/"+ra.Verb+"/"+ra.Subresource] && ra.Resource == "nodes" && ra.Name == "n1"
		return true, r, nil
	})
	n.client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.tokens++
		if r.Spec.Token == "good" {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "scraper", Groups: []string{"monitoring"}}}
		}
		return true, r, nil
	})
	serving := n.pair(n.ca, pki.Leaf{CommonName: "n1", DNSNames: []string{"n1"}, Server: true})
	n.srv, err = New(Config{NodeName: "n1", Pods: n.pods, Client: n.client, Certificate: func() (*tls.Certificate, error) { return serving, nil }, ClientCAs: n.ca.Pool(),
		Healthy: func() error { n.mu.Lock(); defer n.mu.Unlock(); return n.health }, LogDir: n.dir, Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	n.url = "https://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.srv.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return n
}

func (n *node) container(id, name string, state runtimeapi.ContainerState, created int64, log string) {
	p := filepath.Join(n.dir, id+".log")
	var b bytes.Buffer
	for l := range strings.Lines(log) {
		fmt.Fprintf(&b, "2026-11-30T10:00:00.0Z stdout F %s", l)
	}
	if err := os.WriteFile(p, b.Bytes(), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.rt.mu.Lock()
	defer n.rt.mu.Unlock()
	n.rt.logs[id] = p
	n.rt.containers = append(n.rt.containers, &runtimeapi.Container{Id: id, State: state, CreatedAt: created, Image: &runtimeapi.ImageSpec{Image: "img"},
		Labels: map[string]string{ktypes.KubernetesPodUIDLabel: "u1", ktypes.KubernetesPodNameLabel: "web", ktypes.KubernetesPodNamespaceLabel: "default", ktypes.KubernetesContainerNameLabel: name}})
}

func (n *node) pair(ca *pki.Authority, l pki.Leaf) *tls.Certificate {
	n.t.Helper()
	cert, key, err := ca.Issue(l, time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		n.t.Fatal(err)
	}
	return &p
}

// as is the client configuration of somebody with a certificate of ca.
func (n *node) as(user string, ca *pki.Authority) *rest.Config {
	n.t.Helper()
	cert, key, err := ca.Issue(pki.Leaf{CommonName: user, Client: true}, time.Now())
	if err != nil {
		n.t.Fatal(err)
	}
	return &rest.Config{Host: n.url, TLSClientConfig: rest.TLSClientConfig{CAData: n.ca.CertPEM(), ServerName: "n1", CertData: cert, KeyData: key}}
}

func (n *node) apiserver() *rest.Config { return n.as("apiserver", n.ca) }

// do sends one request as cfg's user and returns status and body.
func (n *node) do(cfg *rest.Config, method, path string) (int, string) {
	n.t.Helper()
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (n *node) parse(path string) *url.URL {
	n.t.Helper()
	u, err := url.Parse(n.url + path)
	if err != nil {
		n.t.Fatal(err)
	}
	return u
}

// readTCP connects and reads until the other side closes.
func readTCP(t *testing.T, addr string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
