package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// site is a server with a readiness probe and a preStop, of which a client of the
// Service behind it should never notice that pods come and go, on UDP and TCP.
// Each of its pods has a container that can act as a client.
const site = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: site}
spec:
  replicas: 3
  selector: {matchLabels: {app: site}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: site}}
    spec:
      terminationGracePeriodSeconds: 30
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        nodeTaintsPolicy: Honor # a host that is cut off is none to spread to
        labelSelector: {matchLabels: {app: site}}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
      containers:
      - name: web
        image: tripod.local/web:1
        env: [{name: WHO, value: v1}]
        ports: [{containerPort: 8080}]
        readinessProbe:
          httpGet: {path: /healthz, port: 8080}
          periodSeconds: 1
          timeoutSeconds: 5
          failureThreshold: 10 # a busy machine is not an unready pod
        lifecycle:
          preStop: {sleep: {seconds: 5}}
---
apiVersion: v1
kind: Service
metadata: {name: site}
spec:
  type: NodePort
  selector: {app: site}
  ports:
  - {name: http, port: 80, targetPort: 8080, protocol: TCP}
  - {name: echo, port: 80, targetPort: 8080, protocol: UDP}
`

// outside is the network namespace of the fleet's switch; a host's is named as the
// host is.
func outside() string { return strings.TrimSuffix(cluster.Host(0), "0") + "sw" }

// dialFrom opens connections from a network namespace of the fleet.
func dialFrom(ns string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var c net.Conn
		err := there.Inside(ns, func() (err error) {
			c, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
}

// webFrom is an HTTP client in a network namespace of the fleet that opens a
// connection a request.
func webFrom(ns string) *http.Client {
	return &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{DialContext: dialFrom(ns), DisableKeepAlives: true}}
}

// get is the body that c reads from url.
func get(c *http.Client, url string) (string, error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %q", url, r.Status, b)
	}
	return string(b), err
}

// value is what images/web says for key.
func value(answer, key string) string {
	for l := range strings.Lines(answer) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), key+"="); ok {
			return v
		}
	}
	return ""
}

// route is a way to a Service: from a network namespace to a URL.
type route struct{ from, url string }

// service is the Service called site.
func service(t *testing.T, ns string) (s *corev1.Service) {
	t.Helper()
	eventually(t, time.Minute, "get the Service", func() (err error) {
		s, err = client(t, "").CoreV1().Services(ns).Get(context.Background(), "site", metav1.GetOptions{})
		return err
	})
	return s
}

// routes are the ways to the Service called site: NodePorts of the given hosts from
// outside, and the ClusterIP from each of these hosts.
func routes(t *testing.T, ns string, hosts ...int) []route {
	t.Helper()
	s := service(t, ns)
	var r []route
	for _, i := range hosts {
		r = append(r, route{outside(), fmt.Sprintf("http://%s:%d", cluster.Addr(i), s.Spec.Ports[0].NodePort)},
			route{cluster.Host(i), "http://" + s.Spec.ClusterIP})
	}
	return r
}

// load sends requests along routes, each of its own connection, until it is
// stopped, and counts what came of them.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	total  int
	failed []string
	hosts  map[string]int // answers by pod
	who    map[string]int // answers by version
}

func startLoad(t *testing.T, rs []route) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, hosts: map[string]int{}, who: map[string]int{}}
	for _, r := range rs {
		l.wg.Go(func() {
			c := webFrom(r.from)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				began := time.Now()
				answer, err := get(c, r.url)
				l.note(r, began, answer, err)
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	t.Cleanup(func() { stop(); l.wg.Wait() })
	return l
}

func (l *load) note(r route, began time.Time, answer string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("%s from %s to %s: %v", began.Format("15:04:05.000"), r.from, r.url, err))
		return
	}
	l.hosts[value(answer, "host")]++
	l.who[value(answer, "who")]++
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// more waits for n more requests to come to an end.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	from := l.count()
	eventually(t, 2*time.Minute, fmt.Sprintf("%d more requests", n), func() error {
		if got := l.count() - from; got < n {
			return fmt.Errorf("%d were made", got)
		}
		return nil
	})
}

// finish stops and fails the test if a request failed.
func (l *load) finish(t *testing.T) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests failed; the first:\n%s", len(l.failed), l.total, strings.Join(l.failed[:min(10, len(l.failed))], "\n"))
	}
	t.Logf("requests: %d, failed: %d, answered by %d pods", l.total, len(l.failed), len(l.hosts))
}

// startSite makes the site, waits for its three pods, each on a host of its own, and
// for every route to lead to each of them.
func startSite(t *testing.T) (ns string, rs []route, pods []corev1.Pod) {
	t.Helper()
	whole(t)
	ns = namespace(t)
	manifest(t, ns, site)
	pods = waitReady(t, ns, "app=site", 3)
	on := map[string]bool{}
	for _, p := range pods {
		on[p.Spec.NodeName] = true
	}
	if len(on) != hosts {
		t.Fatalf("three pods that are to be spread run on %v", slices.Collect(maps.Keys(on)))
	}
	rs = routes(t, ns, 1, 2, 3)
	settle(t, rs, pods)
	return ns, rs, pods
}

// settle waits until every route leads to each of the pods and to no other.
func settle(t *testing.T, rs []route, pods []corev1.Pod) {
	t.Helper()
	want := map[string]bool{}
	for _, p := range pods {
		want[p.Name] = true
	}
	for _, r := range rs {
		c := webFrom(r.from)
		eventually(t, time.Minute, fmt.Sprintf("%s from %s leads to the pods", r.url, r.from), func() error {
			seen := map[string]bool{}
			for range 200 { // missing one of three by chance: 1e-35
				answer, err := get(c, r.url)
				if err != nil {
					return err
				}
				h := value(answer, "host")
				if !want[h] {
					return fmt.Errorf("pod %s answered, which is not among the endpoints", h)
				}
				if seen[h] = true; len(seen) == len(want) {
					return nil
				}
			}
			return fmt.Errorf("of %d pods only %v answered", len(want), slices.Collect(maps.Keys(seen)))
		})
	}
}

// endpoints are the addresses of a Service's endpoints that are ready, with their nodes.
func endpoints(c kubernetes.Interface, ns, service string) (map[string]string, error) {
	l, err := c.DiscoveryV1().EndpointSlices(ns).List(context.Background(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, s := range l.Items {
		for _, e := range s.Endpoints {
			if (e.Conditions.Ready == nil || *e.Conditions.Ready) && e.NodeName != nil {
				for _, a := range e.Addresses {
					out[a] = *e.NodeName
				}
			}
		}
	}
	return out, nil
}

// only waits until n pods are all there are, the ones that end included, and are ready.
func only(t *testing.T, ns, selector string, n int) []corev1.Pod {
	t.Helper()
	c := client(t, "")
	var ready []corev1.Pod
	eventually(t, 4*time.Minute, fmt.Sprintf("%d pods of %s, ready, and no other", n, selector), func() error {
		ready = readyPods(t, c, ns, selector)
		l, err := c.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(ready) != n || len(l.Items) != n {
			return fmt.Errorf("there are %d, %d of them ready", len(l.Items), len(ready))
		}
		return nil
	})
	return ready
}

// manifest applies a manifest, also while the control plane changes hands.
func manifest(t *testing.T, ns, text string) {
	t.Helper()
	eventually(t, 2*time.Minute, "kubectl apply", func() error { _, err := tryApply(ns, text); return err })
}

// change makes a change, which may be made twice, also while the control plane changes hands.
func change(t *testing.T, what string, f func() error) {
	t.Helper()
	eventually(t, 2*time.Minute, what, f)
}

func scale(t *testing.T, ns, name string, n int) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, n)
	change(t, fmt.Sprintf("scale %s to %d", name, n), func() error {
		_, err := client(t, "").AppsV1().Deployments(ns).Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "scale")
		return err
	})
}

// TestPodsReachEachOther: every pod reaches every pod by its address, itself
// included, and all of them, itself included, through ClusterIP and NodePort.
// Hosts and outsiders reach them too, over UDP as well.
func TestPodsReachEachOther(t *testing.T) {
	whole(t)
	ns := namespace(t)
	// A client beside each server, so that a request through the Service can come back to the pod that made it.
	manifest(t, ns, strings.Replace(site, "      containers:\n", `      containers:
      - name: client
        image: tripod.local/client:1
        command: [sh, -c, "trap exit TERM; sleep infinity & wait"]
`, 1))
	pods := waitReady(t, ns, "app=site", 3)
	rs := routes(t, ns, 1, 2, 3)
	settle(t, rs, pods)

	var urls, direct []string
	for _, p := range pods {
		direct = append(direct, "http://"+p.Status.PodIP+":8080")
	}
	for _, r := range rs {
		if !slices.Contains(urls, r.url) {
			urls = append(urls, r.url)
		}
	}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			script := fmt.Sprintf("for u in %s; do echo target=$u; curl -sS --max-time 15 $u 2>&1; done; for u in %s; do for n in $(seq 30); do echo target=$u; curl -sS --max-time 15 $u 2>&1; done; done",
				strings.Join(direct, " "), strings.Join(urls, " "))
			var out string
			var err error
			for range 5 { // a connection of exec ends with the peer that it goes through
				if out, err = tryKubectl("-n", ns, "exec", p.Name, "-c", "client", "--", "sh", "-c", script); err == nil {
					break
				}
			}
			if err != nil {
				t.Errorf("pod %s: %v", p.Name, err)
				return
			}
			answers := map[string]map[string]int{}
			for _, a := range strings.Split(out, "target=")[1:] {
				u, answer, _ := strings.Cut(a, "\n")
				if answers[u] == nil {
					answers[u] = map[string]int{}
				}
				h := value(answer, "host")
				if h == "" {
					t.Errorf("from pod %s on %s to %s: %q", p.Name, p.Spec.NodeName, u, answer)
					continue
				}
				answers[u][h]++
				// Between pods no address is translated.
				if remote, _, _ := net.SplitHostPort(value(answer, "remote")); slices.Contains(direct, u) && remote != p.Status.PodIP {
					t.Errorf("from pod %s to pod address %s: the server saw %s, not %s", p.Name, u, remote, p.Status.PodIP)
				}
			}
			for i, q := range pods {
				if answers[direct[i]][q.Name] != 1 {
					t.Errorf("from pod %s to %s on %s: %v answered", p.Name, direct[i], q.Spec.NodeName, answers[direct[i]])
				}
			}
			for _, u := range urls {
				if len(answers[u]) != 3 { // missing one of three in 30 by chance: 2e-5
					t.Errorf("from pod %s through %s: answers from %v, want all of three pods", p.Name, u, answers[u])
				}
			}
		})
	}
	wg.Wait()

	for _, r := range rs {
		addr := strings.TrimPrefix(r.url, "http://")
		if !strings.Contains(addr, ":") {
			addr += ":80"
		} else {
			s := service(t, ns)
			addr = fmt.Sprintf("%s:%d", addr[:strings.Index(addr, ":")], s.Spec.Ports[1].NodePort)
		}
		eventually(t, 30*time.Second, "UDP from "+r.from+" to "+addr, func() error {
			c, err := dialFrom(r.from)(context.Background(), "udp", addr)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
			b := make([]byte, 200)
			n, err := c.Read(b)
			if err == nil && !strings.HasSuffix(string(b[:n]), ": hello") {
				err = fmt.Errorf("answer %q", b[:n])
			}
			return err
		})
	}
}

// TestScalingUnderTraffic: 3 → 10 → 1 replicas; every request is answered.
func TestScalingUnderTraffic(t *testing.T) {
	ns, rs, _ := startSite(t)
	l := startLoad(t, rs)
	l.more(t, 100)
	scale(t, ns, "site", 10)
	pods := waitReady(t, ns, "app=site", 10)
	settle(t, rs[:1], pods) // the new ones get their share
	l.more(t, 100)
	scale(t, ns, "site", 1)
	only(t, ns, "app=site", 1)
	l.more(t, 100)
	l.finish(t)
	if len(l.hosts) != 10 {
		t.Errorf("%d pods answered, want all of 10", len(l.hosts))
	}
}

// TestRollingUpdateUnderTraffic: a new version takes over; every request is answered.
func TestRollingUpdateUnderTraffic(t *testing.T) {
	ns, rs, _ := startSite(t)
	l := startLoad(t, rs)
	l.more(t, 100)
	c := client(t, "")
	patch := `{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"WHO","value":"v2"}]}]}}}}`
	change(t, "update the template", func() error {
		_, err := c.AppsV1().Deployments(ns).Patch(context.Background(), "site", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
	eventually(t, 4*time.Minute, "the new version has taken over", func() error {
		d, err := c.AppsV1().Deployments(ns).Get(context.Background(), "site", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 3 || s.Replicas != 3 || s.AvailableReplicas != 3 {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	pods := only(t, ns, "app=site", 3)
	settle(t, rs, pods)
	l.more(t, 100)
	l.finish(t)
	if l.who["v1"] == 0 || l.who["v2"] == 0 {
		t.Errorf("answers by version: %v, want both", l.who)
	}
}
