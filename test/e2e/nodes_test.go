package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// running are the containers of a namespace that run on host i, sandboxes not
// counted: "pod UID/container name" to their PIDs, which are more than one if a
// container runs twice.
func running(i int, ns string) (map[string][]int, error) {
	out, err := tryIn(i, fmt.Sprintf(`
		ctr -n k8s.io tasks ls | awk '$3=="RUNNING"{print "task", $1, $2}'
		ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.namespace"==%s,labels."io.cri-containerd.kind"==container' | while read -r id; do
			echo container $id $(ctr -n k8s.io containers info $id | sed -nE 's/.*"io.kubernetes.(pod.uid|container.name)": "([^"]*)".*/\1=\2/p'); done`, ns))
	if err != nil {
		return nil, err
	}
	pids, names := map[string]int{}, map[string]string{}
	for l := range strings.Lines(out) {
		f := strings.Fields(l)
		switch {
		case len(f) == 3 && f[0] == "task":
			pids[f[1]], _ = strconv.Atoi(f[2])
		case len(f) == 4 && f[0] == "container":
			v := map[string]string{}
			for _, kv := range f[2:] {
				k, x, _ := strings.Cut(kv, "=")
				v[k] = x
			}
			names[f[1]] = v["pod.uid"] + "/" + v["container.name"]
		}
	}
	r := map[string][]int{}
	for id, name := range names {
		if pid, ok := pids[id]; ok {
			r[name] = append(r[name], pid)
		}
	}
	return r, nil
}

// asSaid says whether the containers of a namespace that run on the hosts are those
// that the API says run there, each of them once.
func asSaid(c kubernetes.Interface, ns string) error {
	l, err := c.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := 1; i <= hosts; i++ {
		want := map[string]bool{}
		for _, p := range l.Items {
			for _, s := range p.Status.ContainerStatuses {
				if p.Spec.NodeName == cluster.Host(i) && s.State.Running != nil {
					want[string(p.UID)+"/"+s.Name] = true
				}
			}
		}
		have, err := running(i, ns)
		if err != nil {
			return err
		}
		for name, pids := range have {
			if !want[name] {
				return fmt.Errorf("%s runs on host %d and should not", name, i)
			}
			if len(pids) != 1 {
				return fmt.Errorf("%s runs %d times on host %d", name, len(pids), i)
			}
		}
		for name := range want {
			if have[name] == nil {
				return fmt.Errorf("%s does not run on host %d", name, i)
			}
		}
	}
	return nil
}

func nodeReady(c kubernetes.Interface, name string) (corev1.ConditionStatus, *corev1.Node, error) {
	n, err := c.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return "", nil, err
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status, n, nil
		}
	}
	return "", n, nil
}

// TestHostCutFromNetwork: the leader's host loses its network for longer than nodes
// are waited for. The Service leaves its pods out, they are replaced elsewhere, and
// once the network is back nothing of the old pods is left.
func TestHostCutFromNetwork(t *testing.T) {
	ns, _, pods := startSite(t)
	victim := leader(t)
	var others []int
	for i := 1; i <= hosts; i++ {
		if i != victim {
			others = append(others, i)
		}
	}
	name := cluster.Host(victim)
	old := map[string]bool{}
	for _, p := range pods {
		if p.Spec.NodeName == name {
			old[p.Name] = true
		}
	}
	rs := routes(t, ns, others...)
	c := client(t, "")

	if err := cluster.Cut(context.Background(), victim); err != nil {
		t.Fatal(err)
	}
	healed := false
	heal := func() {
		if !healed {
			healed = true
			if err := cluster.Heal(context.Background(), victim); err != nil {
				t.Errorf("heal: %v", err)
			}
		}
	}
	t.Cleanup(heal)
	cut := time.Now()
	eventually(t, 3*time.Minute, "the Service leaves out the pods of "+name, func() error {
		eps, err := endpoints(c, ns, "site")
		if err != nil {
			return err
		}
		for a, n := range eps {
			if n == name {
				return fmt.Errorf("%s is still an endpoint", a)
			}
		}
		return nil
	})
	followed := time.Since(cut)
	eventually(t, time.Minute, "node "+name+", of which nothing is heard, is of unknown state", func() error {
		s, _, err := nodeReady(c, name)
		if err == nil && s != corev1.ConditionUnknown {
			err = fmt.Errorf("Ready is %s", s)
		}
		return err
	})
	var left []corev1.Pod
	for _, p := range pods {
		if !old[p.Name] {
			left = append(left, p)
		}
	}
	// Every host has followed when all answers come from the pods left, or from their replacements.
	eventually(t, time.Minute, "the hosts follow", func() error {
		for _, r := range rs {
			w := webFrom(r.from)
			w.Timeout = 3 * time.Second
			for range 20 {
				if _, err := get(w, r.url); err != nil {
					return err
				}
			}
		}
		return nil
	})
	l := startLoad(t, rs)
	now := waitReady(t, ns, "app=site", 3)
	replaced := time.Since(cut)
	for _, p := range now {
		if p.Spec.NodeName == name || old[p.Name] {
			t.Errorf("pod %s on %s is not a replacement", p.Name, p.Spec.NodeName)
		}
	}
	if len(left) != 2 {
		t.Errorf("%d pods of before are on the other hosts, want 2", len(left))
	}
	l.more(t, 100)

	heal()
	back := time.Now()
	whole(t)
	if got := only(t, ns, "app=site", 3); true {
		for _, p := range got {
			if old[p.Name] {
				t.Errorf("pod %s of the host that was cut off is back", p.Name)
			}
		}
		now = got
	}
	eventually(t, 2*time.Minute, "containers are those that the API tells of", func() error { return asSaid(c, ns) })
	eventually(t, 2*time.Minute, "node "+name+" is like the others", func() error {
		s, n, err := nodeReady(c, name)
		if err != nil {
			return err
		}
		if s != corev1.ConditionTrue || len(n.Spec.Taints) > 0 {
			return fmt.Errorf("ready %s, taints %v", s, n.Spec.Taints)
		}
		return nil
	})
	took := time.Since(back)
	settle(t, routes(t, ns, victim), now) // its own rules have followed as well
	l.more(t, 100)
	l.finish(t)
	t.Logf("cut off host %d, the leader: out of the Service after %v, replaced after %v; healed: converged after %v",
		victim, followed.Round(time.Second), replaced.Round(time.Second), took.Round(time.Second))
}

// TestNodedRestart: pods live on, same processes and never out of their Service,
// when noded is restarted or killed.
func TestNodedRestart(t *testing.T) {
	ns, rs, pods := startSite(t)
	const host = 2
	for _, how := range []struct{ name, script string }{
		{"systemctl restart", "systemctl restart noded"},
		{"kill -9", "systemctl kill -s KILL --kill-whom=main noded"},
	} {
		t.Run(how.name, func(t *testing.T) {
			c := client(t, "")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			before, err := running(host, ns)
			if err != nil {
				t.Fatal(err)
			}
			if len(before) != 1 {
				t.Fatalf("containers on host %d: %v, want one", host, before)
			}
			noded := in(t, host, "systemctl show -p MainPID --value noded")

			watch, err := c.DiscoveryV1().EndpointSlices(ns).Watch(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=site"})
			if err != nil {
				t.Fatal(err)
			}
			lost := make(chan string, 100)
			go func() {
				defer close(lost)
				for e := range watch.ResultChan() {
					s, ok := e.Object.(*discoveryv1.EndpointSlice)
					if !ok {
						continue
					}
					ready := 0
					for _, ep := range s.Endpoints {
						if ep.Conditions.Ready == nil || *ep.Conditions.Ready {
							ready++
						}
					}
					if ready != 3 {
						select {
						case lost <- fmt.Sprintf("%s: %s has %d ready endpoints", e.Type, s.Name, ready):
						default:
						}
					}
				}
			}()

			l := startLoad(t, rs)
			l.more(t, 50)
			hit := time.Now()
			in(t, host, how.script)
			eventually(t, 2*time.Minute, "noded runs again and tells of its node", func() error {
				if pid := in(t, host, "systemctl show -p MainPID --value noded"); pid == noded || strings.TrimSpace(pid) == "0" {
					return fmt.Errorf("main process is still %s", strings.TrimSpace(pid))
				}
				if s := strings.TrimSpace(in(t, host, "systemctl is-active noded || true")); s != "active" {
					return fmt.Errorf("noded is %s", s)
				}
				lease, err := c.CoordinationV1().Leases("kube-node-lease").Get(ctx, cluster.Host(host), metav1.GetOptions{})
				if err != nil {
					return err
				}
				if !lease.Spec.RenewTime.After(hit.Add(time.Second)) {
					return fmt.Errorf("lease of %s", lease.Spec.RenewTime)
				}
				return nil
			})
			took := time.Since(hit)
			// It has taken its pods over when it can act on them: one more comes and goes.
			manifest(t, ns, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: after}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "tripod.local/web:1"}]
`, cluster.Host(host)))
			eventually(t, 2*time.Minute, "a new pod runs on it", func() error {
				p, err := c.CoreV1().Pods(ns).Get(ctx, "after", metav1.GetOptions{})
				if err == nil && p.Status.Phase != corev1.PodRunning {
					err = fmt.Errorf("phase %s", p.Status.Phase)
				}
				return err
			})
			remove(t, ns, "after")
			l.more(t, 100)
			l.finish(t)
			cancel()
			for m := range lost {
				t.Errorf("an endpoint was lost meanwhile: %s", m)
			}
			after, err := running(host, ns)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.EqualFunc(before, after, func(a, b []int) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
				t.Errorf("processes before %v, after %v", before, after)
			}
			for _, was := range pods {
				var p *corev1.Pod
				eventually(t, time.Minute, "get pod "+was.Name, func() (err error) {
					p, err = c.CoreV1().Pods(ns).Get(context.Background(), was.Name, metav1.GetOptions{})
					return err
				})
				for k, s := range p.Status.ContainerStatuses {
					if s.RestartCount != 0 || s.ContainerID != was.Status.ContainerStatuses[k].ContainerID {
						t.Errorf("pod %s: restart count %d, container %s, was %s", p.Name, s.RestartCount, s.ContainerID, was.Status.ContainerStatuses[k].ContainerID)
					}
				}
				for k, cond := range p.Status.Conditions {
					if cond.Type == corev1.PodReady && !cond.LastTransitionTime.Equal(&was.Status.Conditions[k].LastTransitionTime) {
						t.Errorf("pod %s was not ready for a while: condition of %s, was %s", p.Name, cond.LastTransitionTime, was.Status.Conditions[k].LastTransitionTime)
					}
				}
			}
			t.Logf("noded was back after %v; containers %v kept their processes", took.Round(time.Millisecond), after)
		})
	}
	whole(t)
}

// remove deletes a pod and waits until the API has forgotten it.
func remove(t *testing.T, ns, name string) {
	t.Helper()
	c := client(t, "")
	change(t, "delete pod "+name, func() error {
		err := c.CoreV1().Pods(ns).Delete(context.Background(), name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) { // an earlier try had come through
			return nil
		}
		return err
	})
	eventually(t, 2*time.Minute, "pod "+name+" is gone", func() error {
		_, err := c.CoreV1().Pods(ns).Get(context.Background(), name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is there")
	})
}

// TestPods: what happens to single pods on their hosts.
func TestPods(t *testing.T) {
	whole(t)
	ns := namespace(t)
	c := client(t, "")
	// url is a page of the pod, to be read on host 1.
	url := func(p *corev1.Pod, path string) string { return "http://" + p.Status.PodIP + ":8080" + path }
	w := webFrom(cluster.Host(1))
	// run creates a pod of the web image, and waits until it is ready and answers.
	run := func(t *testing.T, text string) *corev1.Pod {
		t.Helper()
		manifest(t, ns, text)
		name := regexp.MustCompile(`kind: Pod\nmetadata: \{name: (\S+)\}`).FindStringSubmatch(text)[1]
		var p *corev1.Pod
		eventually(t, 3*time.Minute, "pod "+name+" is ready", func() (err error) {
			if p, err = c.CoreV1().Pods(ns).Get(context.Background(), name, metav1.GetOptions{}); err != nil {
				return err
			}
			for _, cond := range p.Status.Conditions {
				if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("phase %s, %+v", p.Status.Phase, p.Status.ContainerStatuses)
		})
		// Without a readiness probe, ready says that the process was started, not that it listens.
		eventually(t, time.Minute, "pod "+name+" answers", func() error { _, err := get(w, url(p, "/healthz")); return err })
		return p
	}
	// restarted waits until the only container of the pod runs again after it was terminated.
	restarted := func(t *testing.T, name string) corev1.ContainerStatus {
		t.Helper()
		var s corev1.ContainerStatus
		eventually(t, 3*time.Minute, "pod "+name+" is restarted", func() error {
			p, err := c.CoreV1().Pods(ns).Get(context.Background(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			s = p.Status.ContainerStatuses[0]
			if s.RestartCount < 1 || s.State.Running == nil || s.LastTerminationState.Terminated == nil {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		return s
	}

	t.Run("side by side", func(t *testing.T) {
		t.Run("a deleted pod leaves nothing", func(t *testing.T) {
			t.Parallel()
			p := run(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: leaves}
data: {key: value}
---
apiVersion: v1
kind: Secret
metadata: {name: leaves}
stringData: {key: value}
---
apiVersion: v1
kind: Pod
metadata: {name: leaves}
spec:
  containers:
  - name: c
    image: tripod.local/web:1
    resources: {requests: {memory: 16Mi}, limits: {memory: 64Mi}}
    volumeMounts:
    - {name: memory, mountPath: /memory}
    - {name: disk, mountPath: /disk}
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret}
    - {name: config, mountPath: /one, subPath: key}
  volumes:
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: disk, emptyDir: {}}
  - {name: config, configMap: {name: leaves}}
  - {name: secret, secret: {secretName: leaves}}
`)
			host := 0
			for i := 1; i <= hosts; i++ {
				if p.Spec.NodeName == cluster.Host(i) {
					host = i
				}
			}
			ids := strings.Fields(in(t, host, fmt.Sprintf(`ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.uid"==%s'`, p.UID)))
			if len(ids) != 2 {
				t.Fatalf("containers of the pod: %v, want its sandbox and its container", ids)
			}
			// Each line is "kind path" of something that bears the pod's UID, one of its containers' IDs or its address.
			uid := string(p.UID)
			words := append([]string{uid, strings.ReplaceAll(uid, "-", "_")}, ids...)
			var names []string
			for _, x := range words {
				names = append(names, "-name '*"+x+"*'")
			}
			look := fmt.Sprintf(`
				grep -E '%[1]s' /proc/self/mountinfo | awk '{print "mount", $5}'
				find /sys/fs/cgroup -type d \( %[2]s \) | sed 's/^/cgroup /'
				find /var/log/pods /var/log/containers \( %[2]s \) | sed 's/^/log /'
				find /var/lib/noded /run/containerd /var/lib/containerd /var/lib/cni /run/netns \( %[2]s \) 2>/dev/null | sed 's/^/file /'
				find /var/lib/cni -name '%[3]s' 2>/dev/null | sed 's/^/address /'
				ip route | grep -wF '%[3]s' | sed 's/^/route /'
				ctr -n k8s.io containers ls -q | grep -E '%[1]s' | sed 's/^/container /'
				ctr -n k8s.io tasks ls | grep -E '%[1]s' | sed 's/^/task /'
				true`, strings.Join(words, "|"), strings.Join(names, " -o "), p.Status.PodIP)
			had := in(t, host, look)
			for _, kind := range []string{"mount", "cgroup", "log", "file", "container", "task"} {
				if !strings.Contains("\n"+had, "\n"+kind+" ") {
					t.Errorf("no %s of the running pod is found, so none can be missed later:\n%s", kind, had)
				}
			}
			remove(t, ns, "leaves")
			eventually(t, 2*time.Minute, "nothing of the pod is left on "+p.Spec.NodeName, func() error {
				left, err := tryIn(host, look)
				if err == nil && left != "" {
					err = fmt.Errorf("left:\n%s", left)
				}
				return err
			})
		})
		t.Run("liveness", func(t *testing.T) {
			t.Parallel()
			p := run(t, `
apiVersion: v1
kind: Pod
metadata: {name: sick}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: c
    image: tripod.local/web:1
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 3, timeoutSeconds: 5}
`)
			if p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("restarted before it was sick: %+v", p.Status.ContainerStatuses[0])
			}
			r, err := w.Post(url(p, "/healthz?ok=false"), "", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			s := restarted(t, p.Name)
			if last := s.LastTerminationState.Terminated; last.Reason == "OOMKilled" || last.FinishedAt.IsZero() {
				t.Errorf("last state %+v", last)
			}
			eventually(t, time.Minute, "it answers, healthy again", func() error { _, err := get(w, url(p, "/healthz")); return err })
			eventually(t, time.Minute, "events say why", func() error {
				l, err := c.CoreV1().Events(ns).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name})
				if err != nil {
					return err
				}
				var all []string
				seen := map[string]bool{}
				for _, e := range l.Items {
					seen[e.Reason] = true
					all = append(all, e.Reason+": "+e.Message)
				}
				if !seen["Unhealthy"] || !seen["Killing"] {
					return fmt.Errorf("events: %s", strings.Join(all, "; "))
				}
				return nil
			})
		})
		t.Run("out of memory", func(t *testing.T) {
			t.Parallel()
			p := run(t, `
apiVersion: v1
kind: Pod
metadata: {name: hungry}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: tripod.local/web:1
    resources: {limits: {memory: 48Mi}}
`)
			if _, err := get(w, url(p, "/eat?mib=200")); err == nil {
				t.Error("200 MiB fit into 48")
			}
			last := restarted(t, p.Name).LastTerminationState.Terminated
			if last.Reason != "OOMKilled" || last.ExitCode != 137 {
				t.Errorf("last state: reason %q, exit code %d, want OOMKilled and 137", last.Reason, last.ExitCode)
			}
		})
		t.Run("updated ConfigMap", func(t *testing.T) {
			t.Parallel()
			p := run(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: changing}
data: {key: before, gone: x}
---
apiVersion: v1
kind: Pod
metadata: {name: changing}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: tripod.local/web:1
    volumeMounts: [{name: config, mountPath: /etc/config}]
  volumes: [{name: config, configMap: {name: changing}}]
`)
			if got, err := get(w, url(p, "/files?path=/etc/config/key")); err != nil || got != "before" {
				t.Fatalf("key: %q, %v", got, err)
			}
			manifest(t, ns, `
apiVersion: v1
kind: ConfigMap
metadata: {name: changing}
data: {key: after, new: "y"}
`)
			began := time.Now()
			eventually(t, 3*time.Minute, "the change is seen in the volume", func() error {
				got, err := get(w, url(p, "/files?path=/etc/config/key"))
				if err == nil && got != "after" {
					err = fmt.Errorf("it is %q", got)
				}
				return err
			})
			names, err := get(w, url(p, "/files?path=/etc/config"))
			if err != nil || strings.Contains(names, "gone") || !strings.Contains(names, "new") {
				t.Errorf("files: %q, %v", names, err)
			}
			eventually(t, time.Minute, "get the pod", func() (err error) {
				p, err = c.CoreV1().Pods(ns).Get(context.Background(), p.Name, metav1.GetOptions{})
				return err
			})
			if p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("the pod was restarted: %+v", p.Status.ContainerStatuses)
			}
			t.Logf("seen after %v", time.Since(began).Round(100*time.Millisecond))
		})
	})
}
