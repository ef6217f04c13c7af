package storageversionmigration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const (
	// manager owns what is written here.
	manager = "storage-version-migrator-controller"
	// page is how many objects are listed at once.
	page = 500
	// settle is how long a new migration of a resource that is not known waits for
	// it to be.
	settle = time.Minute
)

type controller struct {
	client     kubernetes.Interface
	migrations migrationlisters.StorageVersionMigrationLister
	objects    metadata.Interface
	dynamic    dynamic.Interface
	mapper     meta.RESTMapper
	clock      clock.PassiveClock
}

// New builds the controller. Its keys are resources: NAME.GROUP.
func New(d runtime.Deps, q runtime.Queue, objects metadata.Interface, dyn dynamic.Interface, mapper meta.RESTMapper) (runtime.Controller, error) {
	migrations := d.Informers.Storagemigration().V1().StorageVersionMigrations()
	c := &controller{d.Client, migrations.Lister(), objects, dyn, mapper, d.Clock}
	return runtime.Controller{
		Workers:  2,
		Deadline: 12 * time.Hour, // it writes all objects of a resource
		Sources: []runtime.Source{runtime.Each(migrations.Informer(), func(m *migrationv1.StorageVersionMigration) {
			q.Add(key(m.Spec.Resource))
		})},
		Reconcile: c.reconcile,
	}, nil
}

func key(r metav1.GroupResource) string { return schema.GroupResource(r).String() }

func ended(m *migrationv1.StorageVersionMigration) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationSucceeded)) ||
		meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationFailed))
}

func running(m *migrationv1.StorageVersionMigration) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationRunning))
}

// next returns the migration of a resource that is due, nil for none: the one
// that runs already, else the oldest.
func next(all []*migrationv1.StorageVersionMigration, resource string) (due *migrationv1.StorageVersionMigration) {
	older := func(a, b *migrationv1.StorageVersionMigration) bool {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
	}
	for _, m := range all {
		if key(m.Spec.Resource) != resource || ended(m) {
			continue
		}
		if due == nil || running(m) && !running(due) || running(m) == running(due) && older(m, due) {
			due = m
		}
	}
	return due
}

func (c *controller) reconcile(ctx context.Context, resource string) (time.Duration, error) {
	all, err := c.migrations.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	m := next(all, resource)
	if m == nil {
		return 0, nil
	}
	m = m.DeepCopy()
	gvr, err := c.mapper.ResourceFor(schema.GroupVersionResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource})
	if meta.IsNoMatchError(err) {
		if left := m.CreationTimestamp.Add(settle).Sub(c.clock.Now()); left > 0 {
			return min(left, 5*time.Second), nil
		}
		return 0, c.end(ctx, m, fmt.Errorf("the API has no resource %s", resource))
	}
	if err != nil {
		return 0, fmt.Errorf("find resource %s: %w", resource, err)
	}
	crd, err := c.begin(ctx, m)
	if err != nil {
		return 0, err
	}
	if m, err = c.client.StoragemigrationV1().StorageVersionMigrations().Get(ctx, m.Name, metav1.GetOptions{}); err != nil {
		return 0, fmt.Errorf("read migration of %s: %w", resource, err)
	}
	if err := c.rewrite(ctx, m, gvr); err != nil {
		if ctx.Err() != nil || passing(err) {
			return 0, err
		}
		return 0, c.end(ctx, m, err)
	}
	if crd != nil {
		if err := c.dropOldVersions(ctx, crd); err != nil {
			return 0, err
		}
	}
	return 0, c.end(ctx, m, nil)
}

// passing reports whether a retry may help.
func passing(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}

// begin marks the migration as running. It returns the definition of a custom
// resource as it is at the beginning, nil for others.
func (c *controller) begin(ctx context.Context, m *migrationv1.StorageVersionMigration) (*definition, error) {
	crd, err := c.definition(ctx, m.Spec.Resource)
	if err != nil {
		return nil, err
	}
	if meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: string(migrationv1.MigrationRunning), Status: metav1.ConditionTrue, Reason: "StorageVersionMigrationInProgress", Message: "Migration is running",
		ObservedGeneration: m.Generation,
	}) {
		if _, err := c.client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("mark migration %s as running: %w", m.Name, err)
		}
	}
	return crd, nil
}

// rewrite writes every object of the resource as it is.
func (c *controller) rewrite(ctx context.Context, m *migrationv1.StorageVersionMigration, gvr schema.GroupVersionResource) error {
	gvk, err := c.mapper.KindFor(gvr)
	if err != nil {
		return fmt.Errorf("kind of resource %s: %w", gvr, err)
	}
	o := metav1.ListOptions{Limit: page}
	for {
		list, err := c.objects.Resource(gvr).List(ctx, o)
		if apierrors.IsResourceExpired(err) && o.Continue != "" {
			o.Continue = "" // from the beginning: what was written since is quick to pass
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		if m.Status.ResourceVersion == "" {
			m.Status.ResourceVersion = list.ResourceVersion
		}
		for i := range list.Items {
			if err := c.touch(ctx, gvr, gvk, &list.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

func (c *controller) touch(ctx context.Context, gvr schema.GroupVersionResource, gvk schema.GroupVersionKind, o *metav1.PartialObjectMetadata) error {
	version, kind := gvk.ToAPIVersionAndKind()
	patch, err := json.Marshal(map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion},
	})
	if err != nil {
		return err
	}
	_, err = c.objects.Resource(gvr).Namespace(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("write %s %s/%s: %w", gvr.Resource, o.Namespace, o.Name, err)
	}
	return nil
}

// end writes how the migration went.
func (c *controller) end(ctx context.Context, m *migrationv1.StorageVersionMigration, why error) error {
	set := func(t migrationv1.MigrationConditionType, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
			Type: string(t), Status: status, Reason: reason, Message: message, ObservedGeneration: m.Generation,
		})
	}
	if why != nil {
		set(migrationv1.MigrationFailed, metav1.ConditionTrue, "StorageVersionMigrationFailed", "migration encountered unhandled error: "+why.Error())
	} else {
		set(migrationv1.MigrationSucceeded, metav1.ConditionTrue, "StorageVersionMigrationSucceeded", "Migration completed")
	}
	set(migrationv1.MigrationRunning, metav1.ConditionFalse, "MigrationCompleted", "Migration completed")
	if _, err := c.client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of migration %s: %w", m.Name, err)
	}
	return nil
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// definition is what is needed of a CustomResourceDefinition.
type definition struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Versions []struct {
			Name    string `json:"name"`
			Storage bool   `json:"storage"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		StoredVersions []string `json:"storedVersions"`
	} `json:"status"`
}

// definition reads the definition of a custom resource; nil for others.
func (c *controller) definition(ctx context.Context, r metav1.GroupResource) (*definition, error) {
	if c.dynamic == nil || r.Group == "" {
		return nil, nil
	}
	name := r.Resource + "." + r.Group
	u, err := c.dynamic.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read definition %s: %w", name, err)
	}
	raw, err := u.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var d definition
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("definition %s: %w", name, err)
	}
	return &d, nil
}

// dropOldVersions leaves the storage version alone in storedVersions, unless the
// definition has changed since began was read.
func (c *controller) dropOldVersions(ctx context.Context, began *definition) error {
	name := began.Metadata.Name
	u, err := c.dynamic.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read definition %s: %w", name, err)
	}
	if u.GetGeneration() != began.Metadata.Generation || u.GetUID() != began.Metadata.UID {
		return nil
	}
	var stored []string
	for _, v := range began.Spec.Versions {
		if v.Storage {
			stored = append(stored, v.Name)
		}
	}
	if slices.Equal(stored, began.Status.StoredVersions) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": u.GetResourceVersion()},
		"status":   map[string]any{"storedVersions": stored},
	})
	if err != nil {
		return err
	}
	if _, err := c.dynamic.Resource(definitions).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager}, "status"); err != nil {
		return fmt.Errorf("write stored versions of definition %s: %w", name, err)
	}
	return nil
}
