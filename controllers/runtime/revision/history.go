package revision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// ErrCollision means that another template has taken the name of the revision:
// count the owner's collisionCount up, write it, and try again.
var ErrCollision = errors.New("the name of the revision is taken by another template")

// History reads and writes the revisions of owners of one kind.
type History struct {
	Client kubernetes.Interface
	Lister appslisters.ControllerRevisionLister
	Kind   schema.GroupVersionKind
}

// List returns the owner's revisions, oldest first, adopting and releasing where
// that is due. fresh reads the owner from the API server.
func (h History) List(ctx context.Context, owner metav1.Object, selector labels.Selector, fresh func(context.Context) (metav1.Object, error)) ([]*appsv1.ControllerRevision, error) {
	all, err := h.Lister.ControllerRevisions(owner.GetNamespace()).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	mine, err := runtime.Dependents(ctx, &runtime.Claim{
		Owner: owner, Kind: h.Kind, Selector: selector, Fresh: fresh,
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := h.Client.AppsV1().ControllerRevisions(owner.GetNamespace()).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, all)
	Sort(mine)
	return mine, err
}

// Sync makes the template's revision the newest, creating it if there is none.
// all are the owner's revisions, sorted, and are not changed. It returns the
// template's revision and all revisions as they are now, sorted. ErrCollision
// is returned as it is.
func (h History) Sync(ctx context.Context, owner metav1.Object, t *corev1.PodTemplateSpec, all []*appsv1.ControllerRevision, collisions *int32) (*appsv1.ControllerRevision, []*appsv1.ControllerRevision, error) {
	all = slices.Clone(all)
	next := int64(1)
	if len(all) > 0 {
		next = all[len(all)-1].Revision + 1
	}
	for i, r := range slices.Backward(all) {
		if !Holds(r, t) || r.DeletionTimestamp != nil {
			continue
		}
		if r.Revision+1 == next {
			return r, all, nil
		}
		r = r.DeepCopy()
		r.Revision = next
		r, err := h.Client.AppsV1().ControllerRevisions(r.Namespace).Update(ctx, r, metav1.UpdateOptions{})
		if err != nil {
			return nil, nil, fmt.Errorf("make controller revision %s/%s the newest: %w", owner.GetNamespace(), all[i].Name, err)
		}
		all[i] = r
		Sort(all)
		return r, all, nil
	}
	r, err := h.create(ctx, owner, t, next, collisions)
	if err != nil {
		return nil, nil, err
	}
	all = append(all, r)
	Sort(all)
	return r, all, nil
}

func (h History) create(ctx context.Context, owner metav1.Object, t *corev1.PodTemplateSpec, rev int64, collisions *int32) (*appsv1.ControllerRevision, error) {
	want, err := New(owner, h.Kind, t, rev, collisions)
	if err != nil {
		return nil, err
	}
	api := h.Client.AppsV1().ControllerRevisions(want.Namespace)
	got, err := api.Create(ctx, want, metav1.CreateOptions{})
	if err == nil {
		return got, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create controller revision %s/%s: %w", want.Namespace, want.Name, err)
	}
	// The cache may be behind, so what is there is read from the API server.
	there, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, runtime.Silent(fmt.Errorf("read controller revision %s/%s: %w", want.Namespace, want.Name, err))
	}
	ref := metav1.GetControllerOf(there)
	if ref == nil || ref.UID != owner.GetUID() || !bytes.Equal(there.Data.Raw, want.Data.Raw) && !Holds(there, t) {
		return nil, ErrCollision
	}
	return there, nil
}

// Delete removes revisions that are of no use any more.
func (h History) Delete(ctx context.Context, revisions []*appsv1.ControllerRevision) error {
	for _, r := range revisions {
		err := h.Client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete old controller revision %s/%s: %w", r.Namespace, r.Name, err)
		}
	}
	return nil
}
