package namespace

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	discoveryfake "k8s.io/client-go/discovery/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestConditions(t *testing.T) {
	now := time.Unix(1e9, 0)
	f := &findings{remaining: map[string]int{"pods.": 2}, finalizers: map[string]int{"example.com/x": 1}, deleteErrs: []error{errors.New("no")}}
	first, changed := conditions(nil, f, now)
	if !changed || len(first) != 5 {
		t.Fatalf("changed %v, %d conditions", changed, len(first))
	}
	bad := map[corev1.NamespaceConditionType]bool{
		corev1.NamespaceDeletionContentFailure: true, corev1.NamespaceContentRemaining: true, corev1.NamespaceFinalizersRemaining: true,
	}
	for _, c := range first {
		if (c.Status == corev1.ConditionTrue) != bad[c.Type] {
			t.Errorf("%s is %s", c.Type, c.Status)
		}
	}
	if _, changed := conditions(first, f, now.Add(time.Minute)); changed {
		t.Error("equal findings change the conditions")
	}
	next, changed := conditions(first, &findings{discoveryErr: errors.New("down")}, now.Add(time.Minute))
	if !changed || next[0].Status != corev1.ConditionTrue {
		t.Errorf("discovery failure: %+v", next[0])
	}
}

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func object(kind, namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func TestNamespaceIsEmptiedPodsFirstThenLetGo(t *testing.T) {
	now := metav1.Now()
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &now, Finalizers: []string{"keep-the-fake-from-deleting"}},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	}
	staying := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "staying"}, Spec: ns.Spec}
	c := runtimetest.New(t, ns, staying)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	content := metadatafake.NewSimpleMetadataClient(scheme,
		object("Pod", "going", "p"), object("Secret", "going", "s1"), object("Secret", "going", "s2"), object("Secret", "staying", "s3"))
	var held bool // the pod's node has yet to stop it
	held = true
	content.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) { return held, nil, nil })
	verbs := metav1.Verbs{"delete", "list", "create"}
	disco := &discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: verbs},
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs},
		{Name: "nodes", Kind: "Node", Verbs: verbs},
	}}}}}
	c.Run(t, map[string]runtime.Builder{"namespace": func(q runtime.Queue) (runtime.Controller, error) {
		return New(c.Deps(), q, content, disco)
	}})
	get := func() *corev1.Namespace {
		ns, err := c.CoreV1().Namespaces().Get(context.Background(), "going", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	left := func(namespace string) int {
		l, err := content.Resource(secrets).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(l.Items)
	}
	runtimetest.Eventually(t, func() string {
		for _, cond := range get().Status.Conditions {
			if cond.Type == corev1.NamespaceContentRemaining && cond.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("no condition tells that a pod remains: %+v", get().Status.Conditions)
	})
	if left("going") != 2 || len(get().Spec.Finalizers) != 1 {
		t.Errorf("%d secrets, finalizers %v while a pod is left", left("going"), get().Spec.Finalizers)
	}
	if err := content.Tracker().Delete(podResource, "going", "p"); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		finalized := false
		for _, a := range c.Actions() {
			finalized = finalized || a.Matches("create", "namespaces/finalize") || a.Matches("update", "namespaces/finalize")
		}
		if !finalized || left("going") != 0 {
			return fmt.Sprintf("finalized %v, %d secrets left", finalized, left("going"))
		}
		return ""
	})
	if left("staying") != 1 {
		t.Error("another namespace lost its secret")
	}
}
