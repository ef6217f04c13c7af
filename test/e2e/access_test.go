package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAccess: who may do what, as kubectl says it and as the API enforces it.
func TestAccess(t *testing.T) {
	ns := namespace(t)
	kubectl(t, "-n", ns, "create", "serviceaccount", "reader")
	kubectl(t, "-n", ns, "create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount="+ns+":reader")
	reader := "--as=system:serviceaccount:" + ns + ":reader"
	cani := func(args ...string) result {
		t.Helper()
		return run(t, nil, nil, kubectlIn(ns, append([]string{"auth", "can-i"}, args...)...)...)
	}
	eventually(t, time.Minute, "the binding works", func() error {
		if r := cani("list", "pods", reader); r.code != 0 || r.out != "yes\n" {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	if r := cani("*", "*", "--all-namespaces"); r.code != 0 || r.out != "yes\n" {
		t.Errorf("the administrator may do everything: %v", r)
	}
	for _, args := range [][]string{{"create", "pods"}, {"get", "secrets"}, {"create", "pods", "--subresource=exec"}, {"list", "pods", "-n", "default"}, {"list", "nodes"}} {
		if r := cani(append(args, reader)...); r.code != 1 || r.out != "no\n" {
			t.Errorf("a reader may %s: %v", strings.Join(args, " "), r)
		}
	}
	kubectl(t, "-n", ns, reader, "get", "pods,services,deployments.apps")
	want := fmt.Sprintf(`Error from server (Forbidden): secrets is forbidden: User "system:serviceaccount:%s:reader" cannot list resource "secrets" in API group "" in the namespace "%s"`, ns, ns)
	if r := run(t, nil, nil, kubectlIn(ns, reader, "get", "secrets")...); r.code == 0 || !strings.Contains(r.errs, want) {
		t.Errorf("a reader of secrets: %v", r)
	}
	if out := kubectl(t, "auth", "whoami"); !strings.Contains(out, "system:masters") && !strings.Contains(out, "admin") {
		t.Errorf("auth whoami: %s", out)
	}
}

const inside = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: app}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: app}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: app}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: app}
subjects:
- {kind: ServiceAccount, name: app}
---
apiVersion: v1
kind: Pod
metadata: {name: app, labels: {app: app}}
spec:
  serviceAccountName: app
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: tripod.local/client:1
    command: [sleep, infinity]
`

// TestPodToken: a program in a pod reaches the API through the kubernetes Service
// with what is mounted into every pod, whichever peer answers, and may do there
// what its ServiceAccount may.
func TestPodToken(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, inside)
	waitReady(t, ns, "app=app", 1)
	const script = `
		d=/var/run/secrets/kubernetes.io/serviceaccount
		api=https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
		ask() { curl -sS --max-time 20 --cacert $d/ca.crt -o /tmp/answer -w '%{http_code} ' -H "Authorization: Bearer $(cat $d/token)" "$api$1"; }
		ns=$(cat $d/namespace)
		echo "namespace $ns"
		for try in 1 2 3 4 5 6 7 8 9; do ask /version; grep -c '"v1\.37' /tmp/answer; done
		ask /api/v1/namespaces/$ns/configmaps; grep -c kube-root-ca.crt /tmp/answer
		ask /api/v1/namespaces/$ns/secrets; grep -c 'system:serviceaccount:.*:app.* cannot list resource .*secrets' /tmp/answer
		ask /api/v1/namespaces/default/configmaps; grep -c Forbidden /tmp/answer
		curl -sS --max-time 20 --cacert $d/ca.crt -o /tmp/answer -w '%{http_code}\n' -H 'Authorization: Bearer no.such.token' $api/api
		curl -sS --max-time 20 --cacert $d/ca.crt -o /tmp/answer -w '%{http_code}\n' $api/api/v1/namespaces/$ns/configmaps
	`
	want := "namespace " + ns + "\n" + strings.Repeat("200 1\n", 9) + "200 1\n403 1\n403 1\n401\n401\n"
	if r := run(t, nil, nil, kubectlIn(ns, "exec", "app", "--", "sh", "-c", script)...); r.out != want {
		t.Errorf("asked in the pod: %v\nwant %s", r, want)
	}
}
