package namespace

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// findings are what a pass over a namespace's content gave.
type findings struct {
	discoveryErr error
	deleteErrs   []error
	remaining    map[string]int // by resource.group
	finalizers   map[string]int // by finalizer, of what remains
	grace        time.Duration  // the longest that a pod may still take
	podsFirst    bool           // other resources have not been looked at yet
}

func (f *findings) empty() bool {
	return f.discoveryErr == nil && len(f.deleteErrs) == 0 && len(f.remaining) == 0 && !f.podsFirst
}

// again is when to look again: soon, for nobody tells, but not so often when
// pods have long to go.
func (f *findings) again(age time.Duration) time.Duration {
	wait := 500 * time.Millisecond
	if age > 10*time.Second {
		wait = 2 * time.Second
	}
	if age > 2*time.Minute {
		wait = 10 * time.Second
	}
	return max(wait, min(f.grace/10, 5*time.Second))
}

// conditions brings the five conditions of a namespace that is being deleted up
// to date and reports whether one changed. A condition that was never true is
// written when it first is looked at, as false.
func conditions(before []corev1.NamespaceCondition, f *findings, now time.Time) ([]corev1.NamespaceCondition, bool) {
	out := slices.Clone(before)
	changed := false
	set := func(t corev1.NamespaceConditionType, bad bool, reason, message, goodReason, good string) {
		c := corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: goodReason, Message: good, LastTransitionTime: metav1.NewTime(now)}
		if bad {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, reason, message
		}
		i := slices.IndexFunc(out, func(o corev1.NamespaceCondition) bool { return o.Type == t })
		switch {
		case i < 0:
			out, changed = append(out, c), true
		case out[i].Status != c.Status || out[i].Reason != c.Reason || out[i].Message != c.Message:
			if out[i].Status == c.Status {
				c.LastTransitionTime = out[i].LastTransitionTime
			}
			out[i], changed = c, true
		}
	}
	discovery := ""
	if f.discoveryErr != nil {
		discovery = "Discovery failed for some groups: " + f.discoveryErr.Error()
	}
	set(corev1.NamespaceDeletionDiscoveryFailure, f.discoveryErr != nil, "DiscoveryFailed", discovery,
		"ResourcesDiscovered", "All resources successfully discovered")
	set(corev1.NamespaceDeletionGVParsingFailure, false, "", "", "ParsedGroupVersions", "All legacy kube types successfully parsed")
	var failures []string
	for _, err := range f.deleteErrs {
		failures = append(failures, err.Error())
	}
	slices.Sort(failures)
	set(corev1.NamespaceDeletionContentFailure, len(failures) > 0, "ContentDeletionFailed",
		"Failed to delete all resource types, "+fmt.Sprint(len(failures))+" remaining: "+strings.Join(failures, ", "),
		"ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	set(corev1.NamespaceContentRemaining, len(f.remaining) > 0, "SomeResourcesRemain",
		"Some resources are remaining: "+counts(f.remaining, "%s has %d resource instances"),
		"ContentRemoved", "All content successfully removed")
	set(corev1.NamespaceFinalizersRemaining, len(f.finalizers) > 0, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+counts(f.finalizers, "%s in %d resource instances"),
		"ContentHasNoFinalizers", "All content-preserving finalizers finished")
	return out, changed
}

func counts(m map[string]int, format string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf(format, k, m[k]))
	}
	return strings.Join(parts, ", ")
}
