package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	access "github.com/tripod-cluster/tripod/test/cluster"
	"github.com/tripod-cluster/tripod/test/fleet"
)

const hosts = access.Hosts

var (
	// there is the cluster under test; FLEET_* and TRIPOD_STATE in the environment
	// choose another than the one of `make up`.
	there   access.Cluster
	cluster fleet.Fleet
	state   string // where `make up` left the kubeconfig
)

func kubeconfig() string { return there.Kubeconfig() }

func TestMain(m *testing.M) {
	var err error
	if there, err = access.FromEnv(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cluster, state = there.Fleet, there.State
	os.Exit(m.Run())
}

// dial opens a connection from the fleet's switch, which is where a client
// outside the hosts stands.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return there.Dial(ctx, network, addr)
}

// restConfig is the administrator's, through the virtual address; with an
// address, through the peer there.
func restConfig(t testing.TB, addr string) *rest.Config {
	t.Helper()
	c, err := there.RESTConfig(addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// client is the administrator's, through the virtual address; with an address,
// through the peer there. Through the virtual address, what only reads or deletes
// is asked again for a while when the connection breaks: the address moves with the
// leadership. What creates or changes is not, nor is what a peer itself is asked.
func client(t testing.TB, addr string) *kubernetes.Clientset {
	t.Helper()
	cfg := restConfig(t, addr)
	if addr == "" {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return again{next} })
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// again is a transport that repeats a GET or DELETE that found no server, or lost it.
type again struct{ next http.RoundTripper }

func (a again) RoundTrip(r *http.Request) (*http.Response, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		resp, err := a.next.RoundTrip(r)
		if err == nil || r.Context().Err() != nil || time.Now().After(end) || r.Method != http.MethodGet && r.Method != http.MethodDelete {
			return resp, err
		}
		if r.GetBody != nil {
			body, bodyErr := r.GetBody()
			if bodyErr != nil {
				return resp, err
			}
			r = r.Clone(r.Context())
			r.Body = body
		} else if r.Body != nil && r.Body != http.NoBody {
			return resp, err
		}
	}
}

// web is an HTTP client outside the hosts that opens a connection a request.
func web(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// kubectl runs the real kubectl through the virtual address and returns its
// standard output; it ends the test when it fails.
func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	// The virtual address moves with the leadership: a command that could not reach
	// it, and so did nothing, is given again for a while, as a person would.
	var out string
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		out, err = tryKubectl(args...)
		if err == nil || time.Now().After(end) || !unreached(err) {
			break
		}
	}
	if err != nil {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// unreached says whether kubectl failed before the API server took its request.
func unreached(err error) bool {
	for _, s := range []string{"Unable to connect to the server", "connection refused", "no route to host"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}

func tryKubectl(args ...string) (string, error) { return there.Kubectl(args...) }

// apply applies a manifest from text.
func apply(t testing.TB, namespace, manifest string) string {
	t.Helper()
	out, err := tryApply(namespace, manifest)
	if err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, manifest)
	}
	return out
}

func tryApply(namespace, manifest string) (string, error) { return there.Apply(namespace, manifest) }

// in runs a shell script in host i and returns its standard output.
func in(t testing.TB, i int, script string) string {
	t.Helper()
	out, err := tryIn(i, script)
	if err != nil {
		t.Fatalf("host %d: %v", i, err)
	}
	return out
}

func tryIn(i int, script string) (string, error) { return there.Script(i, script) }

// eventually waits until f says nil, and fails with what it said last.
func eventually(t testing.TB, within time.Duration, what string, f func() error) {
	t.Helper()
	start := time.Now()
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Since(start) > within {
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// status is what `controld status` says on host i.
func status(i int) (peer.Status, error) { return there.Status(i) }

// leader is the number of the host whose controld leads, as the others see it.
func leader(t testing.TB) int {
	t.Helper()
	var found int
	eventually(t, time.Minute, "a leader", func() (err error) {
		found, err = there.Leader()
		return err
	})
	return found
}

// whole waits until every peer votes, answers and serves, and every node is
// ready. Tests that break something call it when they have mended it.
func whole(t testing.TB) {
	t.Helper()
	eventually(t, 4*time.Minute, "the cluster is whole", there.Whole)
}

// namespace makes a namespace for the test and removes it afterwards.
func namespace(t testing.TB) string {
	t.Helper()
	c := client(t, "")
	name := "e2e-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "Test")))
	if len(name) > 50 {
		name = name[:50]
	}
	name = fmt.Sprintf("%s-%d", strings.Trim(name, "-"), time.Now().UnixNano()%100000)
	eventually(t, time.Minute, "make namespace "+name, func() error {
		_, err := c.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := tryKubectl("-n", name, "get", "all,events", "-o", "wide")
			t.Logf("%s when the test failed:\n%s", name, out)
		}
		if err := c.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("remove namespace %s: %v", name, err)
		}
	})
	return name
}

// readyPods are the ready pods, not being deleted, that a label selector finds.
func readyPods(t testing.TB, c kubernetes.Interface, ns, selector string) []corev1.Pod {
	l, err := c.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Logf("list pods: %v", err)
		return nil
	}
	var out []corev1.Pod
	for _, p := range l.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
				out = append(out, p)
			}
		}
	}
	return out
}

// waitReady waits until exactly n pods are ready, and returns them.
func waitReady(t testing.TB, ns, selector string, n int) []corev1.Pod {
	t.Helper()
	c := client(t, "")
	var pods []corev1.Pod
	eventually(t, 3*time.Minute, fmt.Sprintf("%d ready pods of %s", n, selector), func() error {
		if pods = readyPods(t, c, ns, selector); len(pods) != n {
			return fmt.Errorf("%d are", len(pods))
		}
		return nil
	})
	return pods
}
