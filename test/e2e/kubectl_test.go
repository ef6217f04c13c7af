package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const roller = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: roller}
spec:
  replicas: 2
  selector: {matchLabels: {app: roller}}
  template:
    metadata: {labels: {app: roller}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: tripod.local/web:1
        env: [{name: WHO, value: first}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

// TestKubectlDeployment is the life of a Deployment in an operator's hands.
func TestKubectlDeployment(t *testing.T) {
	ns := namespace(t)
	watch := start(t, kubectlVia(1, ns, "get", "pods", "-w")...)
	if out := apply(t, ns, roller); !strings.Contains(out, "deployment.apps/roller created") {
		t.Errorf("apply: %q", out)
	}
	rolledOut := func(what string) {
		t.Helper()
		if out := kubectl(t, "-n", ns, "rollout", "status", "deployment/roller", "--timeout=3m"); !strings.Contains(out, `deployment "roller" successfully rolled out`) {
			t.Errorf("%s: rollout status: %q", what, out)
		}
	}
	who := func(want string) {
		t.Helper()
		for _, p := range waitReady(t, ns, "app=roller", 2) {
			if got := p.Spec.Containers[0].Env[0].Value; got != want {
				t.Errorf("pod %s runs %q, want %q", p.Name, got, want)
			}
		}
	}
	rolledOut("created")
	watch.prints(t, "NAME ")
	watch.prints(t, "Pending ")
	watch.prints(t, "Running ")
	watch.prints(t, "1/1 ")
	who("first")
	if out := apply(t, ns, roller); !strings.Contains(out, "deployment.apps/roller unchanged") {
		t.Errorf("apply again: %q", out)
	}
	if out := kubectl(t, "-n", ns, "get", "deployment", "roller"); !strings.Contains(out, "UP-TO-DATE") || !strings.Contains(out, "2/2 ") {
		t.Errorf("get deployment: %s", out)
	}

	pod := waitReady(t, ns, "app=roller", 2)[0]
	out := kubectl(t, "-n", ns, "describe", "pod", pod.Name)
	for _, want := range []string{pod.Spec.NodeName + "/", "Running", "Ready ", pod.Status.PodIP, "ReplicaSet/roller-", "Scheduled", "Successfully assigned " + ns + "/" + pod.Name + " to " + pod.Spec.NodeName, "Started"} {
		if !strings.Contains(out, want) {
			t.Errorf("describe pod does not say %q:\n%s", want, out)
		}
	}
	out = kubectl(t, "-n", ns, "describe", "deployment", "roller")
	for _, want := range []string{"2 desired | 2 updated | 2 total | 2 available | 0 unavailable", "NewReplicaSetAvailable", "ScalingReplicaSet", "Scaled up replica set roller-"} {
		if !strings.Contains(out, want) {
			t.Errorf("describe deployment does not say %q:\n%s", want, out)
		}
	}

	apply(t, ns, strings.Replace(roller, "value: first", "value: second", 1))
	rolledOut("changed")
	who("second")
	if out := kubectl(t, "-n", ns, "rollout", "history", "deployment/roller"); strings.Join(firstFields(out), " ") != "deployment.apps/roller REVISION 1 2" {
		t.Errorf("rollout history: %s", out)
	}
	if out := kubectl(t, "-n", ns, "rollout", "history", "deployment/roller", "--revision=1"); !strings.Contains(out, "first") {
		t.Errorf("rollout history --revision=1: %s", out)
	}
	if out := kubectl(t, "-n", ns, "rollout", "undo", "deployment/roller"); !strings.Contains(out, "rolled back") {
		t.Errorf("rollout undo: %q", out)
	}
	rolledOut("undone")
	who("first")
	if out := kubectl(t, "-n", ns, "rollout", "history", "deployment/roller"); strings.Join(firstFields(out), " ") != "deployment.apps/roller REVISION 2 3" {
		t.Errorf("rollout history after undo: %s", out)
	}

	kubectl(t, "-n", ns, "scale", "deployment/roller", "--replicas=3", "--current-replicas=2")
	rolledOut("scaled")
	waitReady(t, ns, "app=roller", 3)
	if r := run(t, nil, nil, kubectlIn(ns, "scale", "deployment/roller", "--replicas=1", "--current-replicas=2")...); r.code == 0 || !strings.Contains(r.errs, "Expected replicas to be 2, was 3") {
		t.Errorf("scale with a wrong precondition: %v", r)
	}

	kubectl(t, "-n", ns, "delete", "deployment", "roller", "--timeout=2m")
	c := client(t, "")
	eventually(t, 2*time.Minute, "replica sets and pods go with their deployment", func() error {
		rs, err := c.AppsV1().ReplicaSets(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := c.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(rs.Items)+len(pods.Items) > 0 {
			return fmt.Errorf("%d replica sets and %d pods are left", len(rs.Items), len(pods.Items))
		}
		return nil
	})
	watch.prints(t, "Terminating ")
	if r := run(t, nil, nil, kubectlIn(ns, "get", "deployment", "roller")...); r.code == 0 || !strings.Contains(r.errs, `Error from server (NotFound): deployments.apps "roller" not found`) {
		t.Errorf("get after delete: %v", r)
	}
}

// firstFields are the first words of each line.
func firstFields(s string) []string {
	var out []string
	for _, l := range strings.Split(s, "\n") {
		if f := strings.Fields(l); len(f) > 0 {
			out = append(out, f[0])
		}
	}
	return out
}

// TestKubectlExplain: the API describes itself.
func TestKubectlExplain(t *testing.T) {
	out := kubectl(t, "explain", "deployment.spec.strategy")
	for _, want := range []string{"GROUP:      apps", "VERSION:    v1", "FIELD: strategy <DeploymentStrategy>", "rollingUpdate", "enum: Recreate, RollingUpdate"} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl explain deployment.spec.strategy does not say %q:\n%s", want, out)
		}
	}
	if r := run(t, nil, nil, "kubectl", "--kubeconfig", kubeconfig(), "explain", "pod.spec.nothing"); r.code == 0 || !strings.Contains(r.errs, `field "nothing" does not exist`) {
		t.Errorf("explain of a field that is not there: %v", r)
	}
	out = kubectl(t, "api-resources", "--no-headers", "-o", "wide")
	for _, want := range []string{"endpointslices", "priorityclasses", "validatingadmissionpolicies", "apiservices", "customresourcedefinitions"} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl api-resources lacks %s:\n%s", want, out)
		}
	}
	out = kubectl(t, "version")
	if strings.Count(out, "v1.37.") < 2 || strings.Contains(strings.ToLower(out), "warning") {
		t.Errorf("kubectl version: %s", out)
	}
}

// TestServerSideApply: two managers of one field conflict, and one can insist.
func TestServerSideApply(t *testing.T) {
	ns := namespace(t)
	config := func(color string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {color: " + color + "}\n"
	}
	as := func(manager, manifest string, more ...string) result {
		t.Helper()
		return run(t, nil, strings.NewReader(manifest), kubectlIn(ns, append([]string{"apply", "--server-side", "--field-manager=" + manager, "-f", "-"}, more...)...)...)
	}
	if r := as("alice", config("red")); r.code != 0 || !strings.Contains(r.out, "configmap/shared serverside-applied") {
		t.Fatalf("alice: %v", r)
	}
	if r := as("bob", config("red")); r.code != 0 {
		t.Errorf("bob, who agrees: %v", r)
	}
	if r := as("bob", config("blue")); r.code == 0 || !strings.Contains(r.errs, `conflict with "alice": .data.color`) {
		t.Errorf("bob, who does not agree: %v", r)
	}
	if r := as("bob", config("blue"), "--force-conflicts"); r.code != 0 {
		t.Errorf("bob, who insists: %v", r)
	}
	if r := as("alice", config("red")); r.code == 0 || !strings.Contains(r.errs, `conflict with "bob": .data.color`) {
		t.Errorf("alice, who lost the field: %v", r)
	}
	c, err := client(t, "").CoreV1().ConfigMaps(ns).Get(context.Background(), "shared", metav1.GetOptions{})
	if err != nil || c.Data["color"] != "blue" {
		t.Errorf("the field is %v: %v", c.Data, err)
	}
}

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.e2e.tripod.test}
spec:
  group: e2e.tripod.test
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, shortNames: [gdg]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [size]
            x-kubernetes-validations:
            - {rule: "self.color != 'red' || self.size < 5", message: red gadgets are small}
            properties:
              size: {type: integer, minimum: 1, maximum: 9, description: How large the gadget is.}
              color: {type: string, default: green}
          status:
            type: object
            properties: {size: {type: integer}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: e2e-gadgets-view
  labels: {rbac.authorization.k8s.io/aggregate-to-view: "true"}
rules:
- {apiGroups: [e2e.tripod.test], resources: [gadgets], verbs: [get, list, watch]}
`

// TestCustomResource: a new kind is served, validated, defaulted, printed,
// explained and granted like one of Kubernetes' own, and goes with its definition.
func TestCustomResource(t *testing.T) {
	ns := namespace(t)
	t.Cleanup(func() {
		kubectl(t, "delete", "crd/gadgets.e2e.tripod.test", "clusterrole/e2e-gadgets-view", "--ignore-not-found", "--timeout=2m")
	})
	apply(t, ns, gadgets)
	kubectl(t, "wait", "--for=condition=Established", "crd/gadgets.e2e.tripod.test", "--timeout=2m")
	gadget := func(spec string) string {
		return "apiVersion: e2e.tripod.test/v1\nkind: Gadget\nmetadata: {name: one}\nspec: " + spec + "\n"
	}
	eventually(t, time.Minute, "the new kind is served", func() error {
		_, err := tryApply(ns, gadget("{size: 3}"))
		return err
	})
	for spec, want := range map[string]string{
		"{size: 10}":            `spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9`,
		"{color: blue}":         `spec.size: Required value`,
		"{size: 5, color: red}": `red gadgets are small`,
		"{size: 5, sise: 6}":    `unknown field "spec.sise"`,
	} {
		if _, err := tryApply(ns, gadget(spec)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a gadget of %s: %v; want %q", spec, err, want)
		}
	}
	if out := kubectl(t, "-n", ns, "get", "gdg", "one", "-o", "jsonpath={.spec.size} {.spec.color}"); out != "3 green" {
		t.Errorf("size and color: %q", out)
	}
	if out := kubectl(t, "-n", ns, "get", "gadgets"); strings.Join(firstFields(out), " ") != "NAME one" || !strings.Contains(out, "SIZE") {
		t.Errorf("kubectl get gadgets: %s", out)
	}
	kubectl(t, "-n", ns, "scale", "gadget/one", "--replicas=4")
	if out := kubectl(t, "-n", ns, "get", "gadget", "one", "-o", "jsonpath={.spec.size}"); out != "4" {
		t.Errorf("size after kubectl scale: %q", out)
	}
	eventually(t, time.Minute, "kubectl explain knows the new kind", func() error {
		out, err := tryKubectl("explain", "gadget.spec")
		if err == nil && !strings.Contains(out, "How large the gadget is.") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	// Through the aggregated role `view`, which every reader of a namespace is bound to.
	kubectl(t, "-n", ns, "create", "serviceaccount", "reader")
	kubectl(t, "-n", ns, "create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount="+ns+":reader")
	eventually(t, time.Minute, "a reader of the namespace may list gadgets", func() error {
		_, err := tryKubectl("-n", ns, "--as=system:serviceaccount:"+ns+":reader", "get", "gadgets")
		return err
	})
	kubectl(t, "delete", "crd/gadgets.e2e.tripod.test", "--timeout=2m")
	eventually(t, time.Minute, "the kind is gone", func() error {
		r := run(t, nil, nil, kubectlIn(ns, "get", "gadgets")...)
		// The second when kubectl remembers the kind from before.
		if r.code == 0 || !strings.Contains(r.errs, "the server doesn't have a resource type") && !strings.Contains(r.errs, "the server could not find the requested resource") {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
}
