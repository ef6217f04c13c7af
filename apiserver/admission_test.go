package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// room is a namespace where pods can be made: with its default ServiceAccount.
func room(t *testing.T, cs *kubernetes.Clientset, name string, labels map[string]string) {
	t.Helper()
	ctx := testContext(t)
	if _, err := cs.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}
}

// parsed reads YAML into T.
func parsed[T any](t *testing.T, text string) *T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return &v
}

func TestAdmissionWebhooksChangeAndRefuse(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	room(t, cs, "hooked", nil)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if r.URL.Path == "/change" {
			kind := admissionv1.PatchTypeJSONPatch
			response.PatchType, response.Patch = &kind, []byte(`[{"op":"add","path":"/data/changed","value":"yes"}]`)
		} else if strings.HasPrefix(review.Request.Name, "bad") {
			response.Allowed, response.Result = false, &metav1.Status{Message: "it is bad"}
		}
		review.Request, review.Response = nil, response
		json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(hook.Close)
	at := func(path string) admissionregistrationv1.WebhookClientConfig {
		url := hook.URL + path
		return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: certificateOf(hook)}
	}
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	none, here := admissionregistrationv1.SideEffectClassNone, &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "hooked"}}
	registrations := cs.AdmissionregistrationV1()
	if _, err := registrations.MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "change"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "change.example.com", ClientConfig: at("/change"), Rules: rules, SideEffects: &none, NamespaceSelector: here, AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "asked-for", Expression: "has(object.data)"}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := registrations.ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "refuse"},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{{Name: "refuse.example.com", ClientConfig: at("/refuse"), Rules: rules, SideEffects: &none, NamespaceSelector: here, AdmissionReviewVersions: []string{"v1"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(name string, data map[string]string) (*corev1.ConfigMap, error) {
		return cs.CoreV1().ConfigMaps("hooked").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	eventually(t, "both webhooks are asked", func() error {
		m, err := create("good", map[string]string{"a": "b"})
		if err != nil || m.Data["changed"] != "yes" {
			return fmt.Errorf("created as %v, %v", m.Data, err)
		}
		if _, err := create("bad", nil); err == nil || !strings.Contains(err.Error(), "it is bad") {
			return fmt.Errorf("a bad one: %v", err)
		}
		return nil
	})
	if m, err := create("bare", nil); err != nil || m.Data["changed"] != "" {
		t.Errorf("what a match condition leaves out: %v, %v", m.Data, err)
	}
}

func TestAdmissionPoliciesChangeAndRefuse(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	room(t, cs, "ruled", nil)
	r := cs.AdmissionregistrationV1()
	const match = `
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ruled}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
`
	if _, err := r.ValidatingAdmissionPolicies().Create(ctx, parsed[admissionregistrationv1.ValidatingAdmissionPolicy](t, `
metadata: {name: few}
spec:`+match+`
  paramKind: {apiVersion: v1, kind: ConfigMap}
  variables: [{name: limit, expression: int(params.data.limit)}]
  validations: [{expression: "!has(object.data) || size(object.data) <= variables.limit", messageExpression: "'at most ' + string(variables.limit)"}]
`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.MutatingAdmissionPolicies().Create(ctx, parsed[admissionregistrationv1.MutatingAdmissionPolicy](t, `
metadata: {name: labelled}
spec:`+match+`
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'by': 'policy'}}}"}
`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.MutatingAdmissionPolicyBindings().Create(ctx, parsed[admissionregistrationv1.MutatingAdmissionPolicyBinding](t, "metadata: {name: labelled}\nspec: {policyName: labelled}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().ConfigMaps("default").Create(ctx, parsed[corev1.ConfigMap](t, "metadata: {name: limits}\ndata: {limit: '1'}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ValidatingAdmissionPolicyBindings().Create(ctx, parsed[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, `
metadata: {name: few}
spec: {policyName: few, validationActions: [Deny], paramRef: {name: limits, namespace: default, parameterNotFoundAction: Deny}}
`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(data map[string]string) (*corev1.ConfigMap, error) {
		return cs.CoreV1().ConfigMaps("ruled").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}, Data: data}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	eventually(t, "both policies hold", func() error {
		m, err := create(map[string]string{"a": "1"})
		if err != nil || m.Labels["by"] != "policy" {
			return fmt.Errorf("created with labels %v, %v", m.Labels, err)
		}
		if _, err := create(map[string]string{"a": "1", "b": "2"}); err == nil || !strings.Contains(err.Error(), "at most 1") {
			return fmt.Errorf("too many: %v", err)
		}
		return nil
	})
}

func TestNamespacesLimitTheirPods(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	room(t, cs, "limited", map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"})
	if _, err := cs.CoreV1().LimitRanges("limited").Create(ctx, parsed[corev1.LimitRange](t, `
metadata: {name: limits}
spec: {limits: [{type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}, max: {cpu: "1"}}]}
`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quota, err := cs.CoreV1().ResourceQuotas("limited").Create(ctx, parsed[corev1.ResourceQuota](t, "metadata: {name: quota}\nspec: {hard: {pods: '1'}}"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// What the controller does: without a status, nothing is admitted.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{"pods": resource.MustParse("0")}}
	if _, err := cs.CoreV1().ResourceQuotas("limited").UpdateStatus(ctx, quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := cs.CoreV1().Pods("limited")
	var made *corev1.Pod
	eventually(t, "a pod is made, with defaults", func() error {
		made, err = pods.Create(ctx, pod("first"), metav1.CreateOptions{})
		return err
	})
	if r := made.Spec.Containers[0].Resources; r.Requests.Cpu().String() != "100m" || r.Limits.Cpu().String() != "200m" {
		t.Errorf("the limit range gave %v", r)
	}
	privileged, big := pod("privileged"), pod("big")
	yes := true
	privileged.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	big.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("2")}
	for want, p := range map[string]*corev1.Pod{"violates PodSecurity": privileged, "maximum cpu usage per Container is 1": big, "exceeded quota: quota": pod("second")} {
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", p.Name, err, want)
		}
	}
	after, err := cs.CoreV1().ResourceQuotas("limited").Get(ctx, "quota", metav1.GetOptions{})
	if err != nil || after.Status.Used.Pods().String() != "1" {
		t.Errorf("the quota counts %v, %v", after.Status.Used, err)
	}
}
