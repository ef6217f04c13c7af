package revision

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestSyncCreatesOnceAndRollsBack(t *testing.T) {
	c := runtimetest.New(t, owner())
	h := History{Client: c.Clientset, Kind: kind}
	ctx := t.Context()
	first, all, err := h.Sync(ctx, owner(), template("v1"), nil, nil)
	if err != nil || len(all) != 1 || first.Revision != 1 {
		t.Fatalf("%v, %v, %v", first, all, err)
	}
	// A cache that has not seen it.
	again, _, err := h.Sync(ctx, owner(), template("v1"), nil, nil)
	if err != nil || again.UID != first.UID {
		t.Fatalf("created again: %v, %v", again, err)
	}
	_, all, err = h.Sync(ctx, owner(), template("v2"), all, nil)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	before := c.Writes()
	if _, _, err = h.Sync(ctx, owner(), template("v2"), all, nil); err != nil || c.Writes() != before {
		t.Errorf("an unchanged template writes: %v", err)
	}
	back, all, err := h.Sync(ctx, owner(), template("v1"), all, nil)
	if err != nil || len(all) != 2 || back.Name != first.Name || back.Revision != 3 || all[1] != back {
		t.Errorf("rollback: %v, %v, %v", back, all, err)
	}
}

func TestTakenNameIsACollision(t *testing.T) {
	other, err := New(owner(), kind, template("v1"), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign := other.DeepCopy()
	foreign.OwnerReferences[0].UID = "an earlier one of the name"
	different, err := New(owner(), kind, template("v2"), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	different.Name = other.Name
	for name, there := range map[string]*appsv1.ControllerRevision{"other owner": foreign, "other template": different} {
		h := History{Client: runtimetest.New(t, there.DeepCopy()).Clientset, Kind: kind}
		if _, _, err := h.Sync(t.Context(), owner(), template("v1"), nil, nil); !errors.Is(err, ErrCollision) {
			t.Errorf("%s: %v", name, err)
		}
		one := int32(1)
		if r, _, err := h.Sync(t.Context(), owner(), template("v1"), nil, &one); err != nil || r.Name == other.Name {
			t.Errorf("%s, counted: %v, %v", name, r, err)
		}
	}
}

func TestDeleteBearsWhatIsGone(t *testing.T) {
	r, err := New(owner(), kind, template("v1"), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := runtimetest.New(t, r)
	h := History{Client: c.Clientset, Kind: kind}
	for range 2 {
		if err := h.Delete(t.Context(), []*appsv1.ControllerRevision{r}); err != nil {
			t.Fatal(err)
		}
	}
	l, err := c.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(l.Items) != 0 {
		t.Error(l.Items, err)
	}
}
