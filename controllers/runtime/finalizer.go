package runtime

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HasFinalizer reports whether the object carries the finalizer.
func HasFinalizer(o metav1.Object, finalizer string) bool {
	return slices.Contains(o.GetFinalizers(), finalizer)
}

// AddFinalizer adds the finalizer to an object that is not from a cache.
func AddFinalizer(o metav1.Object, finalizer string) {
	o.SetFinalizers(append(slices.Clone(o.GetFinalizers()), finalizer))
}

// DropFinalizer takes the finalizer from an object that is not from a cache.
func DropFinalizer(o metav1.Object, finalizer string) {
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer }))
}

// Protection is what a finalizer that protects an object in use asks for.
type Protection int

// What to do with the finalizer.
const (
	ProtectionKept Protection = iota
	ProtectionMissing
	// ProtectionDue is of an object that is being deleted: the finalizer goes when
	// nothing uses the object any more.
	ProtectionDue
)

// Protect tells what to do with the finalizer on an object.
func Protect(o metav1.Object, finalizer string) Protection {
	has, going := HasFinalizer(o, finalizer), o.GetDeletionTimestamp() != nil
	switch {
	case going && has:
		return ProtectionDue
	case !going && !has:
		return ProtectionMissing
	}
	return ProtectionKept
}
