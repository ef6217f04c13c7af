package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// helm builds the real helm of go.mod, once for a checkout, and returns its path.
func helm(t *testing.T) string {
	t.Helper()
	path := filepath.Join(state, "bin", "helm")
	// Go's cache makes a second build cheap, and a new version in go.mod is not missed.
	c := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "helm.sh/helm/v4/cmd/helm")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build helm: %v\n%s", err, out)
	}
	return path
}

// TestHelm: the real helm installs, tests, upgrades, rolls back and uninstalls a
// chart, and waits for what it made.
func TestHelm(t *testing.T) {
	bin := helm(t)
	ns := namespace(t)
	home := t.TempDir()
	chart, err := filepath.Abs("testdata/chart")
	if err != nil {
		t.Fatal(err)
	}
	do := func(args ...string) string {
		t.Helper()
		env := []string{"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}
		r := run(t, env, nil, append([]string{bin, "--kubeconfig", kubeconfig(), "-n", ns}, args...)...)
		if r.code != 0 {
			t.Fatalf("helm %s: %v", strings.Join(args, " "), r)
		}
		return r.out
	}
	release := func(status string, revision int) {
		t.Helper()
		var list []struct{ Name, Status, Revision, Chart string }
		if err := json.Unmarshal([]byte(do("list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || list[0].Name != "page" || list[0].Status != status || list[0].Revision != fmt.Sprint(revision) || list[0].Chart != "page-1.2.3" {
			t.Errorf("helm list: %+v; want page of page-1.2.3, %s, revision %d", list, status, revision)
		}
	}
	words := func(want string) {
		t.Helper()
		ip := kubectl(t, "-n", ns, "get", "service", "page", "-o", "jsonpath={.spec.clusterIP}")
		eventually(t, time.Minute, "the page says "+want, func() error {
			out, err := tryIn(1, "curl -sS --max-time 10 http://"+ip)
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}

	if out := do("install", "page", chart, "--wait", "--timeout", "3m"); !strings.Contains(out, "page says: The chart's own words.") {
		t.Errorf("helm install: %s", out)
	}
	if pods := readyPods(t, client(t, ""), ns, "app=page"); len(pods) != 2 {
		t.Errorf("helm install --wait came back with %d ready pods of 2", len(pods))
	}
	release("deployed", 1)
	words("The chart's own words.")

	do("upgrade", "page", chart, "--wait", "--timeout", "3m", "--set", "text=Other words.", "--set", "replicas=1")
	release("deployed", 2)
	waitReady(t, ns, "app=page", 1)
	words("Other words.")
	if out := do("test", "page", "--timeout", "3m"); !strings.Contains(out, "Succeeded") {
		t.Errorf("helm test: %s", out)
	}

	do("rollback", "page", "1", "--wait", "--timeout", "3m")
	release("deployed", 3)
	words("The chart's own words.")

	do("uninstall", "page", "--wait", "--timeout", "3m")
	c := client(t, "")
	if _, err := c.AppsV1().Deployments(ns).Get(context.Background(), "page", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deployment after helm uninstall --wait: %v", err)
	}
	eventually(t, 2*time.Minute, "the pods of the chart are gone", func() error {
		l, err := c.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
		if err == nil && len(l.Items) > 0 {
			err = fmt.Errorf("%d are left", len(l.Items))
		}
		return err
	})
	if out := strings.TrimSpace(do("list", "-o", "json")); out != "[]" {
		t.Errorf("helm list after uninstall: %s", out)
	}
}
