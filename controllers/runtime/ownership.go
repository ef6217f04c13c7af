package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Claim sorts out which dependents belong to an owner with a selector: it
// adopts matching orphans and lets go of dependents that match no longer.
type Claim struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Fresh reads the owner from the API server; it is called once, before the
	// first adoption, for a cache may not show yet that the owner is being
	// deleted or is another of the same name.
	Fresh func(ctx context.Context) (metav1.Object, error)
	// Patch applies a strategic merge patch to the dependent of that name.
	Patch func(ctx context.Context, name string, patch []byte) error

	checked  bool
	checkErr error
}

// Dependents returns those of all that belong to the owner afterwards. all are
// from a cache and are not changed. The result holds what could be settled even
// when there is an error.
func Dependents[T metav1.Object](ctx context.Context, c *Claim, all []T) ([]T, error) {
	var mine []T
	var errs []error
	for _, obj := range all {
		ok, err := c.settle(ctx, obj)
		if err != nil {
			errs = append(errs, err)
		}
		if ok {
			mine = append(mine, obj)
		}
	}
	return mine, errors.Join(errs...)
}

func (c *Claim) settle(ctx context.Context, obj metav1.Object) (mine bool, err error) {
	ref := metav1.GetControllerOf(obj)
	matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
	switch {
	case ref != nil && ref.UID != c.Owner.GetUID():
		return false, nil
	case ref != nil && matches:
		return true, nil
	case ref != nil:
		if c.Owner.GetDeletionTimestamp() != nil {
			return false, nil
		}
		if err := c.release(ctx, obj); err != nil {
			return false, fmt.Errorf("release %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
		}
		return false, nil
	case !matches || c.Owner.GetDeletionTimestamp() != nil || obj.GetDeletionTimestamp() != nil:
		return false, nil
	}
	switch err := c.adopt(ctx, obj); {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err):
		return false, nil
	default:
		return false, fmt.Errorf("adopt %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
}

func (c *Claim) adopt(ctx context.Context, obj metav1.Object) error {
	if !c.checked {
		c.checked = true
		c.checkErr = c.mayAdopt(ctx)
	}
	if c.checkErr != nil {
		return c.checkErr
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, obj.GetName(), patch)
}

func (c *Claim) mayAdopt(ctx context.Context) error {
	fresh, err := c.Fresh(ctx)
	if err != nil {
		return err
	}
	if fresh.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("%s %s/%s was replaced by another of its name", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName())
	}
	if fresh.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%s %s/%s is being deleted", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName())
	}
	return nil
}

func (c *Claim) release(ctx context.Context, obj metav1.Object) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": c.Owner.GetUID()}},
	}})
	if err != nil {
		return err
	}
	err = c.Patch(ctx, obj.GetName(), patch)
	// Gone, or owned by us no longer: nothing is left to release.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

// ControllerKey returns the queue key of obj's controller when that is of the
// given group and kind.
func ControllerKey(obj metav1.Object, gk schema.GroupKind) (key string, uid types.UID, ok bool) {
	ref := metav1.GetControllerOf(obj)
	if ref == nil || ref.Kind != gk.Kind {
		return "", "", false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || gv.Group != gk.Group {
		return "", "", false
	}
	return obj.GetNamespace() + "/" + ref.Name, ref.UID, true
}
