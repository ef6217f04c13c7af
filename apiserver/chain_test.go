package apiserver_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/apiserver"
)

func TestStartServesEveryGroup(t *testing.T) {
	c := start(t)
	cs := c.admin(t)
	rss, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(rss)) {
		if strings.HasPrefix(line, "VmRSS") {
			t.Logf("ready after %s, %s", c.started, strings.TrimSpace(line))
		}
	}
	v, err := cs.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if v.GitVersion != apiserver.DefaultVersion || v.Major != "1" || v.Minor != "37" {
		t.Errorf("version is %s (%s.%s)", v.GitVersion, v.Major, v.Minor)
	}
	_, lists, err := cs.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, l := range lists {
		have = append(have, l.GroupVersion)
	}
	for _, want := range []string{
		"v1", "apps/v1", "batch/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1", "storage.k8s.io/v1",
		"rbac.authorization.k8s.io/v1", "certificates.k8s.io/v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1",
		"events.k8s.io/v1", "flowcontrol.apiserver.k8s.io/v1", "node.k8s.io/v1", "scheduling.k8s.io/v1",
		"admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1", "resource.k8s.io/v1",
		"authentication.k8s.io/v1", "authorization.k8s.io/v1",
	} {
		if !slices.Contains(have, want) {
			t.Errorf("%s is not served", want)
		}
	}
}

func TestDeploymentLivesInTheStore(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	w, err := cs.AppsV1().Deployments("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
			},
		},
	}
	created, err := cs.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.Spec.Replicas == nil || *created.Spec.Replicas != 1 {
		t.Error("replicas were not defaulted to 1")
	}
	list, err := cs.AppsV1().Deployments("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Errorf("a list right after the create has %d items, want 1", len(list.Items))
	}
	if err := cs.AppsV1().Deployments("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var seen []watch.EventType
	for e := range w.ResultChan() {
		seen = append(seen, e.Type)
		if e.Type == watch.Deleted {
			break
		}
	}
	if want := []watch.EventType{watch.Added, watch.Deleted}; !slices.Equal(seen, want) {
		t.Errorf("watch saw %v, want %v", seen, want)
	}
}

// TestPodsStayOnALostNodeAsLongAsConfigured: the rig sets 77 seconds.
func TestPodsStayOnALostNodeAsLongAsConfigured(t *testing.T) {
	c, ctx := start(t), testContext(t)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stays"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}
	// The default ServiceAccount is a controller's to make, and none runs here.
	if _, err := c.admin(t).CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	made, err := c.admin(t).CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, tol := range made.Spec.Tolerations {
		if tol.Effect == corev1.TaintEffectNoExecute && tol.TolerationSeconds != nil {
			found++
			if *tol.TolerationSeconds != 77 {
				t.Errorf("%s is tolerated for %d s", tol.Key, *tol.TolerationSeconds)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d tolerations were added, want 2", found)
	}
}

func TestServerSideApplyKeepsFieldOwners(t *testing.T) {
	c, ctx := start(t), testContext(t)
	maps := c.admin(t).CoreV1().ConfigMaps("default")
	apply := func(manager, value string) error {
		_, err := maps.Apply(ctx, corev1apply.ConfigMap("applied", "default").WithData(map[string]string{"k": value}), metav1.ApplyOptions{FieldManager: manager})
		return err
	}
	if err := apply("one", "a"); err != nil {
		t.Fatal(err)
	}
	if err := apply("two", "b"); !apierrors.IsConflict(err) {
		t.Errorf("a second manager's apply gave %v, want a conflict", err)
	}
	if err := apply("one", "c"); err != nil {
		t.Errorf("the owner's second apply: %v", err)
	}
}

func TestUpdateOfAnOldVersionConflicts(t *testing.T) {
	c, ctx := start(t), testContext(t)
	maps := c.admin(t).CoreV1().ConfigMaps("default")
	old, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "versioned"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next := old.DeepCopy()
	next.Data = map[string]string{"a": "1"}
	if _, err := maps.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	old.Data = map[string]string{"a": "2"}
	if _, err := maps.Update(ctx, old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of the old version gave %v, want a conflict", err)
	}
}

func TestCustomResources(t *testing.T) {
	c, ctx := start(t), testContext(t)
	ext, err := apiextensions.NewForConfig(c.as(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(c.as(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	preserve := true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Singular: "boat", Kind: "Boat", ListKind: "BoatList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}},
			}},
		},
	}
	if _, err := ext.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boats := dyn.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boats"}).Namespace("default")
	boat := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Boat",
		"metadata": map[string]any{"name": "tender"}, "spec": map[string]any{"length": int64(4)},
	}}
	eventually(t, "the new kind is served", func() error {
		_, err := boats.Create(ctx, boat, metav1.CreateOptions{})
		return err
	})
	list, err := boats.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := boats.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := boats.Delete(ctx, "tender", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("watch saw %s, want the deletion", e.Type)
	}
	if err := ext.ApiextensionsV1().CustomResourceDefinitions().Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestNodePortsAndClusterIPsAreAllocated(t *testing.T) {
	c, ctx := start(t), testContext(t)
	services := c.admin(t).CoreV1().Services("default")
	create := func(name string, nodePort int32) (*corev1.Service, error) {
		return services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: nodePort}}},
		}, metav1.CreateOptions{})
	}
	svc, err := create("one", 0)
	if err != nil {
		t.Fatal(err)
	}
	port := svc.Spec.Ports[0].NodePort
	if port < 30000 || port > 32767 {
		t.Errorf("node port %d is outside of the range", port)
	}
	if !strings.HasPrefix(svc.Spec.ClusterIP, "10.96.") {
		t.Errorf("cluster IP %s is outside of the range", svc.Spec.ClusterIP)
	}
	if _, err := create("two", port); !apierrors.IsInvalid(err) {
		t.Errorf("a node port that is taken gave %v, want a refusal", err)
	}
	if err := services.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := create("two", port); err != nil {
		t.Errorf("a node port that was freed: %v", err)
	}
}

func TestServiceAccountTokenAuthenticates(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	if _, err := cs.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tr, err := cs.CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	robot := client(t, c.bearer(tr.Status.Token))
	eventually(t, "the token is accepted", func() error {
		me, err := robot.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if got := me.Status.UserInfo.Username; got != "system:serviceaccount:default:robot" {
			return fmt.Errorf("token is of %s", got)
		}
		return nil
	})
	if _, err := robot.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a service account without rights listed secrets: %v", err)
	}
}

func TestKubernetesServiceListsThisPeer(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	eventually(t, "the endpoint of this peer", func() error {
		slices, err := cs.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
		if err != nil {
			return err
		}
		if len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 {
			return fmt.Errorf("%d slices", len(slices.Items))
		}
		if got := slices.Items[0].Endpoints[0].Addresses[0]; got != "192.0.2.1" {
			return fmt.Errorf("the endpoint is %s", got)
		}
		return nil
	})
	svc, err := cs.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if svc.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("the kubernetes Service has %s, want the first address of the range", svc.Spec.ClusterIP)
	}
}

func TestAuditNamesWhoButNoSecret(t *testing.T) {
	c, ctx := start(t), testContext(t)
	const value = "dont-write-me-down"
	if _, err := c.admin(t).CoreV1().Secrets("default").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "audited"}, StringData: map[string]string{"k": value},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var log string
	eventually(t, "the audit record", func() error {
		b, err := os.ReadFile(c.auditLog)
		if err != nil {
			return err
		}
		if log = string(b); !strings.Contains(log, `"name":"audited"`) {
			return errors.New("no record of the secret yet")
		}
		return nil
	})
	if !strings.Contains(log, `"username":"admin"`) {
		t.Error("the record does not name the user")
	}
	if strings.Contains(log, value) || strings.Contains(log, "requestObject") {
		t.Error("the audit log holds request bodies")
	}
}

func TestLoopbackClientIsUnlimited(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs, err := kubernetes.NewForConfig(c.server.LoopbackConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}
