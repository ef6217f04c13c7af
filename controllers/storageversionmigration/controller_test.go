package storageversionmigration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	migrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func migration(name, resource string, old time.Duration, conditions ...migrationv1.MigrationConditionType) *migrationv1.StorageVersionMigration {
	m := &migrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-old))},
		Spec:       migrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Resource: resource}},
	}
	for _, c := range conditions {
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(c), Status: metav1.ConditionTrue, Reason: "R"})
	}
	return m
}

func TestOneMigrationOfAResourceAtATime(t *testing.T) {
	old, young := migration("old", "secrets", time.Hour), migration("young", "secrets", 0)
	runs := migration("runs", "secrets", time.Minute, migrationv1.MigrationRunning)
	over := migration("over", "secrets", 2*time.Hour, migrationv1.MigrationSucceeded)
	other := migration("other", "pods", 2*time.Hour)
	for name, x := range map[string]struct {
		all  []*migrationv1.StorageVersionMigration
		want *migrationv1.StorageVersionMigration
	}{
		"the oldest":        {[]*migrationv1.StorageVersionMigration{young, old, over, other}, old},
		"the one that runs": {[]*migrationv1.StorageVersionMigration{young, old, runs}, runs},
		"none":              {[]*migrationv1.StorageVersionMigration{over, other}, nil},
	} {
		if got := next(x.all, "secrets"); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestEveryObjectIsWritten(t *testing.T) {
	testScheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(testScheme); err != nil {
		t.Fatal(err)
	}
	secret := func(name string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "u", ResourceVersion: "1"},
		}
	}
	objects := metadatafake.NewSimpleMetadataClient(testScheme, secret("a"), secret("b"))
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	c := runtimetest.New(t, migration("m", "secrets", 0), migration("unknown", "nothings", 2*settle))
	c.Run(t, map[string]runtime.Builder{"storageversionmigration": func(q runtime.Queue) (runtime.Controller, error) {
		return New(c.Deps(), q, objects, nil, mapper)
	}})
	is := func(name string, want migrationv1.MigrationConditionType) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			m, err := c.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if !meta.IsStatusConditionTrue(m.Status.Conditions, string(want)) || running(m) {
				return fmt.Sprintf("migration %s: %v", name, m.Status.Conditions)
			}
			return ""
		})
	}
	is("m", migrationv1.MigrationSucceeded)
	is("unknown", migrationv1.MigrationFailed)
	// A sync on an old view of the migration writes again, which the API server refuses by the resource version and a
	// fake one does not.
	written := map[string]bool{}
	for _, a := range objects.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok {
			written[p.GetName()] = true
		}
	}
	if len(written) != 2 || !written["a"] || !written["b"] {
		t.Errorf("written: %v, want a and b", written)
	}
}
