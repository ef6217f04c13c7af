package statefulset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// state is what is seen of a StatefulSet.
type state struct {
	set *appsv1.StatefulSet
	// current and update name the revisions that is updated from and to. They
	// are equal when no update is on.
	current, update string
	replicas        []numbered // wanted, by number; pod is nil where there is none
	condemned       []numbered // the others, by number
	now             time.Time
}

type numbered struct {
	ordinal int
	pod     *corev1.Pod
}

// plan is what a StatefulSet needs.
type plan struct {
	create []creation
	delete []*corev1.Pod // to be made anew
	// condemn is to go for good.
	condemn []numbered
}

type creation struct {
	ordinal  int
	revision string
}

func observe(set *appsv1.StatefulSet, current, update string, pods []*corev1.Pod, now time.Time) state {
	s := state{set: set, current: current, update: update, now: now, replicas: make([]numbered, count(set))}
	for i := range s.replicas {
		s.replicas[i].ordinal = first(set) + i
	}
	for _, p := range pods {
		n, ok := ordinalOf(set.Name, p.Name)
		if !ok {
			continue
		}
		if i := n - first(set); i >= 0 && i < len(s.replicas) {
			s.replicas[i].pod = p
		} else {
			s.condemned = append(s.condemned, numbered{n, p})
		}
	}
	slices.SortFunc(s.condemned, func(a, b numbered) int { return cmp.Compare(a.ordinal, b.ordinal) })
	return s
}

func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.StatefulSetRevisionLabel] }

func (s state) rolling() bool {
	return s.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType
}

// partition is the lowest number that is updated.
func (s state) partition() int {
	ru := s.set.Spec.UpdateStrategy.RollingUpdate
	if ru == nil || ru.Partition == nil {
		return first(s.set)
	}
	return first(s.set) + int(*ru.Partition)
}

// maxUnavailable is resolved by the wanted size, rounded up, and at least 1.
func (s state) maxUnavailable() int {
	ru := s.set.Spec.UpdateStrategy.RollingUpdate
	if ru == nil || ru.MaxUnavailable == nil {
		return 1
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(ru.MaxUnavailable, len(s.replicas), true)
	if err != nil {
		return 1 // validation let no such value in
	}
	return max(n, 1)
}

// revisionFor is what a new pod of the number is made from.
func (s state) revisionFor(ordinal int) string {
	if s.rolling() && ordinal < s.partition() {
		return s.current
	}
	return s.update
}

// available reports whether a pod serves, as far as the set's order goes.
func (s state) available(p *corev1.Pod) bool {
	return p != nil && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning &&
		podstate.Available(p, s.set.Spec.MinReadySeconds, s.now)
}

// outdated reports whether a pod is to be replaced by the rolling update.
func (s state) outdated(n numbered) bool {
	return s.rolling() && n.ordinal >= s.partition() && n.pod != nil && n.pod.DeletionTimestamp == nil && revisionOf(n.pod) != s.update
}

// hopeless reports whether waiting for an outdated pod to become ready is of no
// use: it is of a template that was given up half way, or it has never served.
func (s state) hopeless(p *corev1.Pod) bool {
	if podstate.Ready(p) {
		return false
	}
	return revisionOf(p) != s.current || p.Status.Phase != corev1.PodRunning || crashing(p) || neverReady(p)
}

func crashing(p *corev1.Pod) bool {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return true
		}
	}
	return false
}

// neverReady reports whether a pod that runs has not been ready in its life: no
// container was restarted, and the condition is from before the last one's start.
func neverReady(p *corev1.Pod) bool {
	c := podstate.Condition(p, corev1.PodReady)
	if c == nil || len(p.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.RestartCount > 0 || s.State.Running == nil {
			return false
		}
		if !s.State.Running.StartedAt.Time.Before(c.LastTransitionTime.Time) {
			return true
		}
	}
	return false
}

// decide returns what to do now.
func (s state) decide() plan {
	var p plan
	if s.set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		s.parallel(&p)
		s.roll(&p)
	} else if s.ordered(&p) {
		s.roll(&p)
	}
	return p
}

// parallel brings all numbers to what is wanted at once.
func (s state) parallel(p *plan) {
	for _, n := range s.replicas {
		switch {
		case n.pod == nil:
			p.create = append(p.create, creation{n.ordinal, s.revisionFor(n.ordinal)})
		case podstate.Terminal(n.pod) && n.pod.DeletionTimestamp == nil:
			p.delete = append(p.delete, n.pod)
		}
	}
	for _, n := range slices.Backward(s.condemned) {
		if n.pod.DeletionTimestamp == nil {
			p.condemn = append(p.condemn, n)
		}
	}
}

// ordered takes one step, and reports whether there was none to take.
func (s state) ordered(p *plan) bool {
	for _, n := range s.replicas {
		switch {
		case n.pod == nil:
			p.create = append(p.create, creation{n.ordinal, s.revisionFor(n.ordinal)})
			return false
		case n.pod.DeletionTimestamp != nil:
			return false
		case podstate.Terminal(n.pod), !s.available(n.pod) && s.outdated(n) && s.hopeless(n.pod):
			p.delete = append(p.delete, n.pod)
			return false
		case !s.available(n.pod):
			return false
		}
	}
	for i, n := range slices.Backward(s.condemned) {
		if n.pod.DeletionTimestamp != nil {
			return false
		}
		// One that is not available goes when none below it is in trouble: what
		// it may wait for comes first.
		troubled := slices.ContainsFunc(s.condemned[:i], func(n numbered) bool { return !s.available(n.pod) })
		if !s.available(n.pod) && troubled {
			return false
		}
		p.condemn = append(p.condemn, n)
		return false
	}
	return true
}

// roll replaces outdated pods, from the highest number down.
func (s state) roll(p *plan) {
	budget := s.maxUnavailable()
	for _, n := range s.replicas {
		if !s.available(n.pod) {
			budget--
		}
	}
	served := true // all above are updated and available
	for _, n := range slices.Backward(s.replicas) {
		ok := s.available(n.pod)
		if s.outdated(n) && !podstate.Terminal(n.pod) {
			switch {
			case ok && budget > 0:
				budget--
				p.delete = append(p.delete, n.pod)
			case !ok && (served || s.hopeless(n.pod)):
				p.delete = append(p.delete, n.pod)
			}
			ok = false
		}
		served = served && ok
	}
}

// status computes the status, and when a pod that is ready now becomes
// available, or 0.
func (s state) status() (appsv1.StatefulSetStatus, time.Duration) {
	out := *s.set.Status.DeepCopy()
	out.ObservedGeneration = s.set.Generation
	out.Replicas, out.ReadyReplicas, out.AvailableReplicas = 0, 0, 0
	out.CurrentReplicas, out.UpdatedReplicas = 0, 0
	out.CurrentRevision, out.UpdateRevision = s.current, s.update
	var next time.Duration
	for _, n := range slices.Concat(s.replicas, s.condemned) {
		if n.pod == nil {
			continue
		}
		out.Replicas++
		if n.pod.Status.Phase == corev1.PodRunning {
			wait, ready := podstate.AvailableIn(n.pod, time.Duration(s.set.Spec.MinReadySeconds)*time.Second, s.now)
			switch {
			case ready && wait == 0:
				out.AvailableReplicas++
				fallthrough
			case ready:
				out.ReadyReplicas++
			}
			if wait > 0 && (next == 0 || wait < next) {
				next = wait
			}
		}
		if n.pod.DeletionTimestamp != nil {
			continue
		}
		if revisionOf(n.pod) == s.current {
			out.CurrentReplicas++
		}
		if revisionOf(n.pod) == s.update {
			out.UpdatedReplicas++
		}
	}
	want := int32(len(s.replicas))
	if s.rolling() && s.current != s.update && out.Replicas == want && out.UpdatedReplicas == want && out.AvailableReplicas == want {
		out.CurrentRevision, out.CurrentReplicas = s.update, out.UpdatedReplicas
	}
	return out, next
}
