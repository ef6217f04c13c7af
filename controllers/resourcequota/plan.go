package resourcequota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// countPrefix begins the names of counts of objects, such as
	// count/deployments.apps.
	countPrefix = "count/"
	// poll is how often objects are counted that no watch tells of, resync how
	// often all is.
	poll   = 10 * time.Second
	resync = 5 * time.Minute
	// grace is how long after a change of the use it is not lowered.
	grace = 2 * time.Second
)

// countedResource returns the resource whose objects a name of a quota counts,
// or false for a name of another meaning.
func countedResource(name corev1.ResourceName) (schema.GroupResource, bool) {
	switch name {
	case corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceReplicationControllers, corev1.ResourceQuotas:
		return schema.GroupResource{Resource: string(name)}, true
	}
	gr, ok := strings.CutPrefix(string(name), countPrefix)
	if !ok {
		return schema.GroupResource{}, false
	}
	return schema.ParseGroupResource(gr), true
}

// watched reports whether events tell of the resource's objects.
func watched(gr schema.GroupResource) bool {
	switch gr {
	case schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "services"},
		schema.GroupResource{Resource: "persistentvolumeclaims"}, schema.GroupResource{Resource: "configmaps"}:
		return true
	}
	return false
}

// interval returns when to count a quota again without an event.
func interval(hard corev1.ResourceList) time.Duration {
	for name := range hard {
		if gr, ok := countedResource(name); ok && !watched(gr) || strings.Contains(string(name), "deviceclass.resource.k8s.io/") {
			return poll
		}
	}
	return resync
}

// status returns what a quota's status is to be: the use of each resource that it
// limits. What used does not tell keeps its last value.
func status(q *corev1.ResourceQuota, used corev1.ResourceList) corev1.ResourceQuotaStatus {
	out := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: corev1.ResourceList{}}
	for name := range q.Spec.Hard {
		n, ok := used[name]
		if !ok {
			if n, ok = q.Status.Used[name]; !ok {
				n = resource.MustParse("0")
			}
		}
		out.Used[name] = n.DeepCopy()
	}
	return out
}

// lowers reports whether a use in the new status is below the old.
func lowers(old, next corev1.ResourceQuotaStatus) bool {
	for name, n := range next.Used {
		if o, ok := old.Used[name]; ok && n.Cmp(o) < 0 {
			return true
		}
	}
	return false
}

func same(a, b corev1.ResourceQuotaStatus) bool {
	return equality.Semantic.DeepEqual(a.Hard, b.Hard) && equality.Semantic.DeepEqual(a.Used, b.Used)
}
