package namespace

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryfake "k8s.io/client-go/discovery/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

// halfDown is discovery while an aggregated API does not answer.
type halfDown struct{ *discoveryfake.FakeDiscovery }

func (d halfDown) ServerResourcesForGroupVersionWithContext(ctx context.Context, gv string) (*metav1.APIResourceList, error) {
	if gv == "metrics.example.com/v1" {
		return nil, errors.New("the server is currently unable to handle the request")
	}
	return d.FakeDiscovery.ServerResourcesForGroupVersionWithContext(ctx, gv)
}

// TestAggregatedAPIThatIsDown: what can be deleted is, the namespace stays, for
// nobody knows what the API that is down holds in it, and it says so.
func TestAggregatedAPIThatIsDown(t *testing.T) {
	now := metav1.Now()
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &now, Finalizers: []string{"keep-the-fake-from-deleting"}},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	}
	c := runtimetest.New(t, ns)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	content := metadatafake.NewSimpleMetadataClient(scheme, object("Secret", "going", "s"))
	verbs := metav1.Verbs{"delete", "list"}
	disco := halfDown{&discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: verbs}}},
		{GroupVersion: "metrics.example.com/v1", APIResources: []metav1.APIResource{{Name: "samples", Kind: "Sample", Namespaced: true, Verbs: verbs}}},
	}}}}
	g := c.Run(t, map[string]runtime.Builder{"namespace": func(q runtime.Queue) (runtime.Controller, error) {
		return New(c.Deps(), q, content, disco)
	}})
	runtimetest.Eventually(t, func() string {
		l, err := content.Resource(secrets).Namespace("going").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) > 0 {
			return fmt.Sprintf("secrets left: %v, %v", l, err)
		}
		got, err := c.CoreV1().Namespaces().Get(t.Context(), "going", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, cond := range got.Status.Conditions {
			if cond.Type == corev1.NamespaceDeletionDiscoveryFailure && cond.Status == corev1.ConditionTrue {
				if len(got.Spec.Finalizers) != 1 {
					return "the namespace was let go"
				}
				return ""
			}
		}
		return fmt.Sprintf("conditions %v", got.Status.Conditions)
	})
	for _, a := range c.Actions() {
		if a.GetSubresource() == "finalize" {
			t.Error("the namespace was let go")
		}
	}
	runtimetest.Eventually(t, func() string {
		waits, err := g.Explain("namespace", "", "going")
		for _, w := range waits {
			if w.By == "the API service that does not answer: see kubectl get apiservices" {
				return ""
			}
		}
		return fmt.Sprintf("explained as %v, %v", waits, err)
	})
}
