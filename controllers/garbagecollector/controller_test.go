package garbagecollector

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

var (
	pods    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	nodes   = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

func item(apiVersion, kind, namespace, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), OwnerReferences: owners, ResourceVersion: "1"},
	}
}

func pod(name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	return item("v1", "Pod", "ns", name, owners...)
}

func owner(kind, name string) metav1.OwnerReference {
	v := "v1"
	if kind == "Widget" || kind == "Gone" {
		v = "example.com/v1"
	}
	return metav1.OwnerReference{APIVersion: v, Kind: kind, Name: name, UID: types.UID("uid-" + name)}
}

func blocking(r metav1.OwnerReference) metav1.OwnerReference {
	yes := true
	r.BlockOwnerDeletion = &yes
	return r
}

type world struct {
	client *fake.FakeMetadataClient
	disco  *discoveryfake.FakeDiscovery
}

func verbs() metav1.Verbs { return metav1.Verbs{"delete", "list", "watch", "get", "patch"} }

func core() *metav1.APIResourceList {
	return &metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs()},
		{Name: "pods/status", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"get"}},
		{Name: "nodes", Kind: "Node", Verbs: verbs()},
		{Name: "events", Kind: "Event", Namespaced: true, Verbs: verbs()},
	}}
}

func custom() *metav1.APIResourceList {
	return &metav1.APIResourceList{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: verbs()},
	}}
}

func start(t *testing.T, lists []*metav1.APIResourceList, objects ...apiruntime.Object) *world {
	t.Helper()
	w := prepare(t, lists, objects...)
	w.run(t, lists)
	return w
}

func prepare(t *testing.T, lists []*metav1.APIResourceList, objects ...apiruntime.Object) *world {
	t.Helper()
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{client: fake.NewSimpleMetadataClient(scheme, objects...)}
	w.disco = &discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: lists}}
	return w
}

// run runs the controller until the test ends. It returns once the resources of
// the lists are watched.
func (w *world) run(t *testing.T, lists []*metav1.APIResourceList) {
	t.Helper()
	g := runtime.NewGroup(runtime.Options{Log: slog.New(slog.DiscardHandler)})
	g.Add("garbagecollector", func(q runtime.Queue) (runtime.Controller, error) {
		return New(runtime.Deps{Log: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}}, q, w.client, w.disco)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	watched := 0
	for _, l := range lists {
		for _, r := range l.APIResources {
			if !strings.Contains(r.Name, "/") && r.Name != "events" {
				watched++
			}
		}
	}
	defer runtimetest.Eventually(t, func() string {
		n := 0
		for _, a := range w.client.Actions() {
			if a.GetVerb() == "watch" {
				n++
			}
		}
		if n < watched {
			return fmt.Sprintf("%d of %d resources are watched", n, watched)
		}
		return ""
	})
	t.Cleanup(func() {
		h := g.Health()[0]
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(runtimetest.Timeout):
			t.Error("did not stop")
		}
		if h.Restarts > 0 {
			t.Errorf("failed: %s", h.LastError)
		}
	})
}

func (w *world) names(t *testing.T, r schema.GroupVersionResource) string {
	t.Helper()
	l, err := w.client.Resource(r).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range l.Items {
		out = append(out, o.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *world) waitNames(t *testing.T, r schema.GroupVersionResource, want string) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		if got := w.names(t, r); got != want {
			return fmt.Sprintf("%s: %q, want %q", r.Resource, got, want)
		}
		return ""
	})
}

func TestOnlyWithoutALivingOwner(t *testing.T) {
	w := start(t, []*metav1.APIResourceList{core(), custom()},
		item("example.com/v1", "Widget", "ns", "alive"),
		item("example.com/v1", "Widget", "elsewhere", "far"),
		item("v1", "Node", "", "node"),
		pod("no-owner"),
		pod("owner-lives", owner("Widget", "alive")),
		pod("owner-lives-cluster-wide", owner("Node", "node")),
		pod("owner-gone", owner("Widget", "gone")),
		pod("one-of-two-lives", owner("Widget", "gone"), owner("Widget", "alive")),
		pod("owner-in-other-namespace", owner("Widget", "far")),
		pod("unknown-kind", owner("Gone", "x")),
		pod("chain", owner("Pod", "owner-gone")),
		pod("impostor", func() metav1.OwnerReference { r := owner("Widget", "alive"); r.UID = "another"; return r }()),
		item("v1", "Node", "", "cluster-wide-with-namespaced-owner", owner("Widget", "alive")),
	)
	w.waitNames(t, pods, "no-owner one-of-two-lives owner-lives owner-lives-cluster-wide unknown-kind")
	w.waitNames(t, nodes, "cluster-wide-with-namespaced-owner node")
	runtimetest.Eventually(t, func() string {
		o, err := w.client.Resource(pods).Namespace("ns").Get(t.Context(), "one-of-two-lives", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].Name != "alive" {
			return fmt.Sprintf("owners %v, want the living one alone", o.OwnerReferences)
		}
		return ""
	})
	// The owner goes: what it owns goes too.
	if err := w.client.Resource(widgets).Namespace("ns").Delete(t.Context(), "alive", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.waitNames(t, pods, "no-owner owner-lives-cluster-wide unknown-kind")
}

func TestCustomResourceThatAppearsLater(t *testing.T) {
	w := start(t, []*metav1.APIResourceList{core()}, pod("p", owner("Widget", "w")), pod("q", owner("Widget", "gone")),
		item("example.com/v1", "Widget", "ns", "w"))
	w.disco.Lock()
	w.disco.Resources = []*metav1.APIResourceList{core(), custom()}
	w.disco.Unlock()
	w.waitNames(t, pods, "p")
}

func TestForegroundWaitsForBlockingDependents(t *testing.T) {
	now := metav1.Now()
	top := item("example.com/v1", "Widget", "ns", "top")
	top.DeletionTimestamp = &now
	top.Finalizers = []string{metav1.FinalizerDeleteDependents}
	held := pod("held", blocking(owner("Widget", "top")))
	held.DeletionTimestamp = &now // its node has yet to stop it
	w := start(t, []*metav1.APIResourceList{core(), custom()}, top, held, pod("free", blocking(owner("Widget", "top"))))
	w.waitNames(t, pods, "held")
	finalizers := func() []string {
		o, err := w.client.Resource(widgets).Namespace("ns").Get(t.Context(), "top", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o.Finalizers
	}
	if f := finalizers(); len(f) != 1 {
		t.Errorf("finalizers %v though a dependent is left", f)
	}
	if err := w.client.Resource(pods).Namespace("ns").Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		if f := finalizers(); len(f) != 0 {
			return fmt.Sprint("finalizers ", f)
		}
		return ""
	})
}

func TestOrphanLetsDependentsGo(t *testing.T) {
	now := metav1.Now()
	top := item("example.com/v1", "Widget", "ns", "top")
	top.DeletionTimestamp = &now
	top.Finalizers = []string{metav1.FinalizerOrphanDependents, "example.com/other"}
	w := start(t, []*metav1.APIResourceList{core(), custom()}, top, pod("a", owner("Widget", "top")), pod("b", owner("Widget", "top")))
	runtimetest.Eventually(t, func() string {
		o, err := w.client.Resource(widgets).Namespace("ns").Get(t.Context(), "top", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if fmt.Sprint(o.Finalizers) != "[example.com/other]" {
			return fmt.Sprint("finalizers ", o.Finalizers)
		}
		return ""
	})
	for _, name := range []string{"a", "b"} {
		o, err := w.client.Resource(pods).Namespace("ns").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(o.OwnerReferences) != 0 {
			t.Errorf("%s: owners %v, %v", name, o.OwnerReferences, err)
		}
	}
}

// TestOwnersNotListedYetAfterARestart: a new leader sees the dependents before it
// can list their owners.
func TestOwnersNotListedYetAfterARestart(t *testing.T) {
	w := prepare(t, []*metav1.APIResourceList{core(), custom()},
		item("example.com/v1", "Widget", "ns", "alive"), pod("p", owner("Widget", "alive")), pod("marker", owner("Widget", "gone")))
	var down atomic.Bool
	down.Store(true)
	w.client.PrependReactor("list", "widgets", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return down.Load(), nil, apierrors.NewServiceUnavailable("down")
	})
	w.run(t, []*metav1.APIResourceList{core()})
	runtimetest.Eventually(t, func() string {
		for _, a := range w.client.Actions() {
			if a.Matches("list", "widgets") {
				return ""
			}
		}
		return "the owners were not asked for"
	})
	down.Store(false)
	w.waitNames(t, pods, "p")
	for _, a := range w.client.Actions() {
		if d, ok := a.(clienttesting.DeleteAction); ok && d.GetName() == "p" {
			t.Error("a pod with an owner was deleted")
		}
	}
}

func TestOwnerThatCannotBeReadIsNotAbsent(t *testing.T) {
	lists := []*metav1.APIResourceList{core(), custom()}
	w := prepare(t, lists, pod("p", owner("Widget", "w")), pod("marker", owner("Widget", "gone")))
	w.client.PrependReactor("get", "widgets", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		if a.(clienttesting.GetAction).GetName() == "w" {
			return true, nil, apierrors.NewServiceUnavailable("down")
		}
		return false, nil, nil
	})
	w.run(t, lists)
	w.waitNames(t, pods, "p")
}
