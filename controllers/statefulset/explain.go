package statefulset

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// explain says what a StatefulSet waits for.
func (c *controller) explain(namespace, name string) ([]runtime.Wait, error) {
	set, err := c.sets.StatefulSets(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(c.pods.OwnedBy(set.UID), func(p *corev1.Pod) bool { return !isOfSet(set, p.Name) })
	s := observe(set, set.Status.CurrentRevision, set.Status.UpdateRevision, pods, c.clock.Now())
	waits := append(runtime.DeletionWaits(set), s.waits()...)
	for _, n := range s.replicas {
		if n.pod != nil {
			continue
		}
		for _, claim := range newClaims(set, n.ordinal) {
			if have, err := c.claims.PersistentVolumeClaims(namespace).Get(claim.Name); err == nil && doomed(set, have) {
				waits = append(waits, runtime.Wait{For: fmt.Sprintf("claim %s to go before pod %s is made", claim.Name, podName(set, n.ordinal)), By: "controller persistentvolumeclaimprotection"})
			}
		}
		break
	}
	return append(waits, runtime.PodsWait(pods)...), nil
}

// waits says what the set waits for, but for its pods' own troubles.
func (s state) waits() (waits []runtime.Wait) {
	const me = "controller statefulset"
	add := func(by, format string, args ...any) {
		waits = append(waits, runtime.Wait{For: fmt.Sprintf(format, args...), By: by})
	}
	if s.set.Status.ObservedGeneration < s.set.Generation {
		add(me, "its newest change to be seen")
	}
	missing, old, held := 0, 0, 0
	var blocker *numbered
	for i := range s.replicas {
		n := &s.replicas[i]
		switch {
		case n.pod == nil:
			missing++
		case s.rolling() && n.ordinal < s.partition() && revisionOf(n.pod) != s.update:
			held++
		case revisionOf(n.pod) != s.update:
			old++
		}
		if blocker == nil && n.pod != nil && !s.available(n.pod) {
			blocker = n
		}
	}
	ordered := s.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	if missing > 0 {
		if ordered && blocker != nil {
			add(me, "%d pods to be made: pods are made in order, and %s is not available", missing, blocker.pod.Name)
		} else {
			add(me, "%d pods to be made", missing)
		}
	}
	if old > 0 {
		switch {
		case !s.rolling():
			add("you", "%d pods to be deleted by hand, then made from revision %s (update strategy OnDelete)", old, s.update)
		case blocker != nil:
			add(me, "%d pods to be replaced by revision %s: %s is not available first (maxUnavailable %d)", old, s.update, blocker.pod.Name, s.maxUnavailable())
		default:
			add(me, "%d pods to be replaced by revision %s", old, s.update)
		}
	}
	if held > 0 {
		add("you", "%d pods that keep their old revision: their numbers are below the partition, %d", held, s.partition()-first(s.set))
	}
	if n := len(s.condemned); n > 0 {
		if ordered && blocker != nil {
			add(me, "%d pods to go: pods go in order, and %s is not available", n, blocker.pod.Name)
		} else {
			add(me, "%d pods to go", n)
		}
	}
	return waits
}
