package garbagecollector

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var podKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

func obj(uid string, owners ...string) object {
	o := object{uid: types.UID(uid), kind: podKind, namespace: "ns", name: uid}
	for _, w := range owners {
		o.owners = append(o.owners, ref(w))
	}
	return o
}

func ref(uid string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: uid, UID: types.UID(uid)}
}

func keys(jobs []job) string {
	var out []string
	for _, j := range jobs {
		k := string(j.uid)
		if j.orphan {
			k = "orphan/" + k
		}
		out = append(out, k)
	}
	slices.Sort(out)
	return fmt.Sprint(slices.Compact(out))
}

func TestGraphSaysWhereToLook(t *testing.T) {
	g := newGraph()
	check := func(what string, jobs []job, want string) {
		t.Helper()
		if got := keys(jobs); got != want {
			t.Errorf("%s: look at %s, want %s", what, got, want)
		}
	}
	check("an object without owners", g.put(obj("a")), "[]")
	check("one with an owner", g.put(obj("b", "a")), "[b]")
	check("the same again", g.put(obj("b", "a")), "[]")
	check("a dependent before its owner", g.put(obj("d", "c")), "[d]")
	check("the owner", g.put(obj("c", "b")), "[c]")
	check("owner gone", g.remove("a"), "[b]")
	if !g.isGone("a") {
		t.Error("a gone object is not known to be gone")
	}
	if got := g.owner("ns", ref("a")); got != absent {
		t.Errorf("a gone owner is %d", got)
	}
	check("dependent of a gone one goes", g.remove("b"), "[c]")

	c := obj("c", "b")
	c.deleting, c.foreground = true, true
	check("foreground deletion", g.put(c), "[c d]")
	if got := g.owner("ns", ref("c")); got != waiting {
		t.Errorf("an owner that waits is %d", got)
	}
	check("still", g.put(c), "[]")
	check("dependent released", g.put(obj("d")), "[c]")
	check("dependent back", g.put(obj("d", "c")), "[d]")
	check("dependent of a waiting one goes", g.remove("d"), "[c]")

	e := obj("e")
	e.deleting, e.orphan = true, true
	check("orphaning deletion", g.put(e), "[orphan/e]")
}

func TestOwnerCoordinatesMustFit(t *testing.T) {
	g := newGraph()
	g.put(obj("a"))
	cluster := obj("c")
	cluster.namespace = ""
	g.put(cluster)
	wrong := ref("a")
	wrong.Name = "b"
	kind := ref("a")
	kind.Kind = "Secret"
	group := ref("a")
	group.APIVersion = "apps/v1"
	version := ref("a")
	version.APIVersion = "v2"
	for _, c := range []struct {
		name, namespace string
		ref             metav1.OwnerReference
		want            ownerState
	}{
		{"right", "ns", ref("a"), alive}, {"other namespace", "other", ref("a"), unknown}, {"other name", "ns", wrong, unknown},
		{"other kind", "ns", kind, unknown}, {"other group", "ns", group, unknown}, {"other version of the kind", "ns", version, alive},
		{"cluster-wide owner", "other", ref("c"), alive}, {"never seen", "ns", ref("x"), unknown},
	} {
		if got := g.owner(c.namespace, c.ref); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestDroppedResourceIsNotGone(t *testing.T) {
	g := newGraph()
	a := obj("a")
	a.resource = schema.GroupVersionResource{Group: "x", Version: "v1", Resource: "as"}
	g.put(a)
	g.put(obj("b", "a"))
	g.drop(a.resource)
	if got := g.owner("ns", ref("a")); got != unknown {
		t.Errorf("an owner that is watched no longer is %d, want unknown", got)
	}
}

// After any history the edges are those of the objects there are.
func TestGraphEdgesFitObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGraph()
		model := map[types.UID]object{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			uid := fmt.Sprint(rapid.IntRange(0, 7).Draw(t, "uid"))
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				g.remove(types.UID(uid))
				delete(model, types.UID(uid))
				continue
			}
			var owners []string
			for w := range 8 {
				if rapid.IntRange(0, 4).Draw(t, "owner") == 0 {
					owners = append(owners, fmt.Sprint(w))
				}
			}
			o := obj(uid, owners...)
			g.put(o)
			model[o.uid] = o
		}
		for owner := range 8 {
			uid := types.UID(fmt.Sprint(owner))
			var want, got []string
			for _, o := range model {
				if hasOwner(o.owners, uid) {
					want = append(want, string(o.uid))
				}
			}
			for _, d := range g.dependents(uid) {
				got = append(got, string(d.uid))
			}
			slices.Sort(want)
			slices.Sort(got)
			if fmt.Sprint(want) != fmt.Sprint(got) {
				t.Fatalf("dependents of %s: %v, want %v", uid, got, want)
			}
		}
	})
}
