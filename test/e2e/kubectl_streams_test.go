package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One container talks and ends when a file tells it to, one waits for work, one
// serves.
const talker = `
apiVersion: v1
kind: Pod
metadata: {name: talker, labels: {app: talker}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: state, emptyDir: {}}]
  containers:
  - name: talk
    image: tripod.local/client:1
    volumeMounts: [{name: state, mountPath: /state}]
    command:
    - sh
    - -c
    - |
      echo >>/state/runs
      run=$(wc -l </state/runs) i=0
      while [ ! -e /state/end ]; do echo "run $run line $i"; i=$((i+1)); sleep 0.2; done
      rm /state/end
      echo "run $run ends"
      exit 3
  - name: work
    image: tripod.local/client:1
    command: [sleep, infinity]
    volumeMounts: [{name: state, mountPath: /state}]
  - name: web
    image: tripod.local/web:1
    env: [{name: WHO, value: e2e}]
    ports: [{containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: talker}
spec:
  selector: {app: talker}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

// TestKubectlStreams: logs, exec, cp and port-forward of the real kubectl, through
// the API server to the host of the pod.
func TestKubectlStreams(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, talker)
	waitReady(t, ns, "app=talker", 1)
	t.Run("exec", func(t *testing.T) { testExec(t, ns) })
	t.Run("terminal", func(t *testing.T) { testTerminal(t, ns) })
	t.Run("cp", func(t *testing.T) { testCopy(t, ns) })
	t.Run("port-forward", func(t *testing.T) { testPortForward(t, ns) })
	t.Run("logs", func(t *testing.T) { testLogs(t, ns) })
}

func testExec(t *testing.T, ns string) {
	r := run(t, nil, nil, kubectlIn(ns, "exec", "talker", "-c", "work", "--", "sh", "-c", "echo out; echo err >&2; exit 7")...)
	if r.code != 7 || r.out != "out\n" || !strings.HasPrefix(r.errs, "err\n") {
		t.Errorf("outputs and exit code: %v", r)
	}
	data := make([]byte, 2<<20)
	_, _ = rand.Read(data)
	r = run(t, nil, bytes.NewReader(data), kubectlIn(ns, "exec", "-i", "talker", "-c", "work", "--", "cat")...)
	if r.code != 0 || r.out != string(data) {
		t.Errorf("2 MiB through cat: exit code %d, %d bytes came back, the same: %v; %s", r.code, len(r.out), r.out == string(data), r.errs)
	}
	r = run(t, nil, nil, kubectlIn(ns, "exec", "talker", "-c", "work", "--", "no-such-program")...)
	if r.code == 0 || !strings.Contains(r.errs, "no-such-program") {
		t.Errorf("a program that is not there: %v", r)
	}
}

func testTerminal(t *testing.T, ns string) {
	p := startTTY(t, 24, 80, kubectlVia(1, ns, "exec", "-it", "talker", "-c", "work", "--", "sh")...)
	// What the shell prints differs from what is typed, which the terminal echoes.
	p.key(t, "echo is-$((40+2))-a; tty\n")
	p.prints(t, "is-42-a")
	p.prints(t, "/dev/pts/")
	// A size travels beside what is typed, and may arrive after it.
	size := func(want string) {
		t.Helper()
		eventually(t, time.Minute, "the size "+want+" arrives in the pod", func() error {
			p.key(t, "stty size\n")
			if !strings.Contains(p.output(), want) {
				return fmt.Errorf("not yet")
			}
			return nil
		})
	}
	size("24 80")
	p.resize(t, 50, 132)
	size("50 132")
	// Control-C reaches the program, not kubectl.
	p.key(t, "sleep 1000\n")
	p.prints(t, "sleep 1000")
	eventually(t, time.Minute, "sleep runs", func() error {
		if r := run(t, nil, nil, kubectlIn(ns, "exec", "talker", "-c", "work", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")...); !strings.Contains(r.out, "sleep 1000") {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	p.key(t, "\x03")
	p.key(t, "echo is-$((40+3))-b\n")
	p.prints(t, "is-43-b")
	p.key(t, "exit 5\n")
	if code := p.exits(t); code != 5 {
		t.Errorf("exit code %d, want the shell's 5", code)
	}
}

func testCopy(t *testing.T, ns string) {
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	big := make([]byte, 3<<20)
	_, _ = rand.Read(big)
	files := map[string][]byte{"a.txt": []byte("small\n"), "deep/er/big.bin": big, "deep/empty": nil}
	for name, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	kubectl(t, "-n", ns, "cp", "-c", "work", from, "talker:/tmp/there")
	kubectl(t, "-n", ns, "cp", "-c", "work", "talker:/tmp/there", filepath.Join(dir, "back"))
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, "back", name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came back with %d bytes of %d: %v", name, len(got), len(want), err)
		}
	}
	if out := kubectl(t, "-n", ns, "exec", "talker", "-c", "work", "--", "sh", "-c", "cat /tmp/there/a.txt; stat -c %a /tmp/there/a.txt"); out != "small\n640\n" {
		t.Errorf("in the pod: %q", out)
	}
}

func testPortForward(t *testing.T, ns string) {
	forwarded := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> \d+`)
	for _, target := range []string{"pod/talker :8080", "service/talker :80"} {
		p := start(t, kubectlVia(1, ns, append([]string{"port-forward"}, strings.Fields(target)...)...)...)
		p.prints(t, "Forwarding from 127.0.0.1:")
		var addr string
		eventually(t, time.Minute, "the port", func() error {
			m := forwarded.FindStringSubmatch(p.output())
			if m == nil {
				return fmt.Errorf("%q", p.output())
			}
			addr = m[1]
			return nil
		})
		// Several connections at once, and as many bytes as do not fit in any buffer on the way.
		var wait sync.WaitGroup
		for range 4 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				if b, err := download("http://" + addr + "/"); err != nil || !strings.Contains(string(b), "e2e") {
					t.Errorf("%s: %q %v", target, b, err)
				}
				if b, err := download("http://" + addr + "/size?n=2000000"); err != nil || len(b) != 2000000 {
					t.Errorf("%s: %d bytes of 2000000: %v", target, len(b), err)
				}
			}()
		}
		wait.Wait()
		if p.ended() {
			t.Errorf("%s: kubectl port-forward ended by itself: %s", target, p.output())
		}
	}
}

func download(url string) ([]byte, error) {
	r, err := web(time.Minute).Get(url)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", r.Status)
	}
	return b, err
}

// testLogs: a follower sees lines as they are printed, and ends with the
// container; the next one follows the next run, and the run before is still there.
func testLogs(t *testing.T, ns string) {
	p := start(t, kubectlVia(1, ns, "logs", "-f", "talker", "-c", "talk", "--tail=1")...)
	var seen int
	p.prints(t, "run 1 line")
	line := regexp.MustCompile(`run 1 line (\d+)\n`)
	first := p.output()
	if n := len(line.FindAllString(first, -1)); n > 100 {
		t.Errorf("--tail=1 began with %d lines", n)
	}
	eventually(t, time.Minute, "new lines are followed", func() error {
		if seen = len(line.FindAllString(p.output(), -1)); seen < len(line.FindAllString(first, -1))+10 {
			return fmt.Errorf("%d lines", seen)
		}
		return nil
	})
	kubectl(t, "-n", ns, "exec", "talker", "-c", "work", "--", "touch", "/state/end")
	p.prints(t, "run 1 ends")
	if code := p.exits(t); code != 0 {
		t.Errorf("kubectl logs -f ended with exit code %d: %s", code, p.output())
	}
	numbers := line.FindAllStringSubmatch(p.output(), -1)
	for k := 1; k < len(numbers); k++ {
		var a, b int
		fmt.Sscan(numbers[k-1][1], &a)
		fmt.Sscan(numbers[k][1], &b)
		if b != a+1 {
			t.Fatalf("after line %d came line %d", a, b)
		}
	}
	c := client(t, "")
	eventually(t, 2*time.Minute, "the container runs again", func() error {
		pod, err := c.CoreV1().Pods(ns).Get(context.Background(), "talker", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, s := range pod.Status.ContainerStatuses {
			if s.Name == "talk" && s.RestartCount == 1 && s.State.Running != nil {
				if last := s.LastTerminationState.Terminated; last == nil || last.ExitCode != 3 {
					return fmt.Errorf("its last state is %v", last)
				}
				return nil
			}
		}
		return fmt.Errorf("%v", pod.Status.ContainerStatuses)
	})
	p = start(t, kubectlVia(1, ns, "logs", "-f", "talker", "-c", "talk")...)
	p.prints(t, "run 2 line 0\n")
	p.prints(t, "run 2 line 5\n")
	if strings.Contains(p.output(), "run 1") {
		t.Errorf("the log of the second run holds the first's lines")
	}
	previous := kubectl(t, "-n", ns, "logs", "talker", "-c", "talk", "--previous", "--timestamps", "--tail=2")
	if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT[0-9:.]+Z run 1 line \d+\n\d{4}-\d\d-\d\dT[0-9:.]+Z run 1 ends\n$`).MatchString(previous) {
		t.Errorf("logs --previous --timestamps --tail=2: %q", previous)
	}
	if all := kubectl(t, "-n", ns, "logs", "-l", "app=talker", "--all-containers", "--prefix", "--tail=3"); !strings.Contains(all, "[pod/talker/talk] run 2 line") {
		t.Errorf("logs -l --all-containers --prefix: %q", all)
	}
	if r := run(t, nil, nil, kubectlIn(ns, "logs", "talker", "-c", "none")...); r.code == 0 || !strings.Contains(r.errs, "container none is not valid for pod talker") {
		t.Errorf("logs of a container that is not there: %v", r)
	}
}
