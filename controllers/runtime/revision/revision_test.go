package revision

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

func owner() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}}
}

func template(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func TestDataIsAReplacingPatch(t *testing.T) {
	got, err := Data(template("v1"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"image":"v1","name":"c","resources":{}}]}}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRevisionHoldsItsTemplate(t *testing.T) {
	r, err := New(owner(), kind, template("v1"), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !Holds(r, template("v1")) || Holds(r, template("v2")) {
		t.Error("a revision does not tell its template from another")
	}
	// Another encoding of the same template.
	r.Data.Raw = []byte(strings.Replace(string(r.Data.Raw), `"resources":{}`, `"resources":{},"command":[]`, 1))
	if !Holds(r, template("v1")) {
		t.Error("another encoding of the template counts as a change")
	}
	for _, raw := range []string{"", "{}", "nonsense"} {
		if Holds(&appsv1.ControllerRevision{Data: apiruntime.RawExtension{Raw: []byte(raw)}}, template("v1")) {
			t.Errorf("%q holds a template", raw)
		}
	}
}

func TestNameChangesWithTemplateAndCollisions(t *testing.T) {
	name := func(image string, collisions *int32) string {
		r, err := New(owner(), kind, template(image), 1, collisions)
		if err != nil {
			t.Fatal(err)
		}
		if r.Name != "web-"+Hash(r) {
			t.Errorf("name %s, hash %s", r.Name, Hash(r))
		}
		return r.Name
	}
	one := int32(1)
	names := map[string]bool{name("v1", nil): true, name("v2", nil): true, name("v1", &one): true}
	if len(names) != 3 {
		t.Errorf("names are not distinct: %v", names)
	}
	if name("v1", nil) != name("v1", nil) {
		t.Error("the name of a template's revision changes")
	}
	long := owner()
	long.Name = strings.Repeat("a", 253)
	r, err := New(long, kind, template("v1"), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Name) > 253 {
		t.Errorf("name of %d characters", len(r.Name))
	}
}

func TestSurplusIsTheOldestIdle(t *testing.T) {
	var all []*appsv1.ControllerRevision
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: int64(i)})
	}
	live := func(r *appsv1.ControllerRevision) bool { return r.Name == "a" || r.Name == "e" }
	for limit, want := range map[int32]string{0: "bcd", 1: "bc", 2: "b", 3: "", 10: ""} {
		got := ""
		for _, r := range Surplus(all, live, &limit) {
			got += r.Name
		}
		if got != want {
			t.Errorf("limit %d: %q, want %q", limit, got, want)
		}
	}
	if Surplus(all, live, nil) != nil {
		t.Error("without a limit something is surplus")
	}
}
