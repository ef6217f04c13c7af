package daemonset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// burst bounds the pods created and those deleted in one reconcile; upstream's
// value.
const burst = 250

// state is what is seen of a DaemonSet.
type state struct {
	ds    *appsv1.DaemonSet
	nodes []nodeState // by name
	// strays are pods not bound yet whose node is gone, or that no node was
	// chosen for.
	strays []*corev1.Pod
	// updated tells whether a pod has the current template.
	updated func(*corev1.Pod) bool
	now     time.Time
}

// nodeState is a node with the DaemonSet's pods on it.
type nodeState struct {
	name      string
	run, stay bool          // see fitter.fit
	pods      []*corev1.Pod // running first, then oldest first; ended and terminating ones too
}

// plan is what a DaemonSet needs.
type plan struct {
	create []string // names of nodes
	delete []*corev1.Pod
	// failed and succeeded are those of delete that have ended.
	failed, succeeded []*corev1.Pod
	// again is when a pod that failed is due, 0 for never.
	again time.Duration
}

// observe sorts the pods by node.
func observe(ds *appsv1.DaemonSet, nodes []*corev1.Node, pods []*corev1.Pod, updated func(*corev1.Pod) bool, now time.Time) state {
	s := state{ds: ds, updated: updated, now: now}
	f := newFitter(ds)
	for _, n := range nodes {
		run, stay := f.fit(n)
		s.nodes = append(s.nodes, nodeState{name: n.Name, run: run, stay: stay})
	}
	slices.SortFunc(s.nodes, func(a, b nodeState) int { return cmp.Compare(a.name, b.name) })
	for _, p := range pods {
		i, ok := slices.BinarySearchFunc(s.nodes, nodeOf(p), func(n nodeState, name string) int { return cmp.Compare(n.name, name) })
		switch {
		case ok:
			s.nodes[i].pods = append(s.nodes[i].pods, p)
		case p.Spec.NodeName == "" && p.DeletionTimestamp == nil:
			s.strays = append(s.strays, p)
		}
	}
	for _, n := range s.nodes {
		slices.SortFunc(n.pods, func(a, b *corev1.Pod) int {
			return cmp.Or(
				cmp.Compare(rank(a), rank(b)),
				a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
				cmp.Compare(a.Name, b.Name),
			)
		})
	}
	return s
}

// rank puts pods that run first, and those that have ended or are going last.
func rank(p *corev1.Pod) int {
	switch {
	case !podstate.Active(p):
		return 2
	case p.Spec.NodeName == "" || p.Status.Phase != corev1.PodRunning:
		return 1
	}
	return 0
}

// oldest returns the oldest active pod with the current template, and the
// oldest with another, nil for none, and all further active pods.
func (s state) oldest(n nodeState) (updated, outdated *corev1.Pod, more []*corev1.Pod) {
	for _, p := range n.pods {
		switch {
		case !podstate.Active(p):
		case updated == nil && s.updated(p):
			updated = p
		case outdated == nil && !s.updated(p):
			outdated = p
		default:
			more = append(more, p)
		}
	}
	return updated, outdated, more
}

// decide returns what to do. While the placement of pods is to be put right the
// rolling update waits. backoff tells how long a failed pod is to be kept.
func (s state) decide(backoff func(node string) time.Duration) plan {
	p := s.place(backoff)
	if len(p.create) == 0 && len(p.delete) == 0 && s.ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		s.roll(&p)
	}
	p.create = p.create[:min(len(p.create), burst)]
	p.delete = p.delete[:min(len(p.delete), burst)]
	return p
}

// place brings pods to the nodes that lack one, and away from where they are not
// to be.
func (s state) place(backoff func(node string) time.Duration) plan {
	p := plan{delete: slices.Clone(s.strays)}
	maxSurge, _ := s.limits()
	for _, n := range s.nodes {
		if !n.stay {
			for _, pod := range n.pods {
				if pod.DeletionTimestamp == nil {
					p.delete = append(p.delete, pod)
				}
			}
			continue
		}
		if n.run && len(n.pods) == 0 {
			p.create = append(p.create, n.name)
			continue
		}
		for _, pod := range n.pods {
			if pod.DeletionTimestamp != nil {
				continue
			}
			switch pod.Status.Phase {
			case corev1.PodFailed:
				if wait := backoff(n.name); wait > 0 {
					p.wait(wait)
					continue
				}
				p.failed = append(p.failed, pod)
				p.delete = append(p.delete, pod)
			case corev1.PodSucceeded:
				p.succeeded = append(p.succeeded, pod)
				p.delete = append(p.delete, pod)
			}
		}
		updated, outdated, more := s.oldest(n)
		p.delete = append(p.delete, more...)
		if updated == nil || outdated == nil {
			continue
		}
		switch {
		case maxSurge == 0:
			// One is enough: what has run longest stays.
			if slices.Index(n.pods, updated) < slices.Index(n.pods, outdated) {
				p.delete = append(p.delete, outdated)
			} else {
				p.delete = append(p.delete, updated)
			}
		case !podstate.Ready(outdated), s.available(updated):
			p.delete = append(p.delete, outdated)
		}
	}
	return p
}

func (p *plan) wait(d time.Duration) {
	if p.again == 0 || d < p.again {
		p.again = d
	}
}

func (s state) available(pod *corev1.Pod) bool {
	return podstate.Available(pod, s.ds.Spec.MinReadySeconds, s.now)
}

// roll replaces pods of other templates.
func (s state) roll(p *plan) {
	maxSurge, maxUnavailable := s.limits()
	if maxSurge > 0 {
		p.create = s.surge(maxSurge)
		return
	}
	budget := maxUnavailable
	var spare []*corev1.Pod
	for _, n := range s.nodes {
		if !n.run && len(n.pods) == 0 {
			continue
		}
		updated, outdated, _ := s.oldest(n)
		switch {
		case updated != nil && s.available(updated):
		case outdated != nil && s.available(outdated):
			spare = append(spare, outdated)
			continue
		case outdated != nil:
			p.delete = append(p.delete, outdated)
			fallthrough
		default:
			if n.run {
				budget--
			}
		}
	}
	p.delete = append(p.delete, spare[:min(len(spare), max(budget, 0))]...)
}

// surge returns the nodes that get a pod of the current template beside that of
// another. The latter goes (see place) when the former is available.
func (s state) surge(maxSurge int) []string {
	var create, spare []string
	for _, n := range s.nodes {
		updated, outdated, _ := s.oldest(n)
		switch {
		case outdated == nil || !n.run:
		case updated != nil:
			maxSurge--
		case !s.available(outdated):
			create = append(create, n.name)
		default:
			spare = append(spare, n.name)
		}
	}
	return append(create, spare[:min(len(spare), max(maxSurge, 0))]...)
}

// limits resolves maxSurge and maxUnavailable, both rounded up, by how many
// nodes are to run a pod. When both come to nothing one node may be without a
// pod, or no update could move.
func (s state) limits() (maxSurge, maxUnavailable int) {
	ru := s.ds.Spec.UpdateStrategy.RollingUpdate
	if s.ds.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || ru == nil {
		return 0, 1
	}
	desired := 0
	for _, n := range s.nodes {
		if n.run {
			desired++
		}
	}
	value := func(v *intstr.IntOrString) int {
		if v == nil {
			return 0
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, desired, true)
		if err != nil {
			return 0 // validation let no such value in
		}
		return n
	}
	maxSurge, maxUnavailable = value(ru.MaxSurge), value(ru.MaxUnavailable)
	if maxSurge == 0 && maxUnavailable == 0 {
		maxUnavailable = 1
	}
	return maxSurge, maxUnavailable
}

// status computes the status, and when a pod that is ready now becomes
// available, or 0.
func (s state) status() (appsv1.DaemonSetStatus, time.Duration) {
	out := *s.ds.Status.DeepCopy()
	out.ObservedGeneration = s.ds.Generation
	out.DesiredNumberScheduled, out.CurrentNumberScheduled, out.NumberMisscheduled = 0, 0, 0
	out.NumberReady, out.NumberAvailable, out.UpdatedNumberScheduled = 0, 0, 0
	var next time.Duration
	for _, n := range s.nodes {
		if !n.run {
			if len(n.pods) > 0 {
				out.NumberMisscheduled++
			}
			continue
		}
		out.DesiredNumberScheduled++
		if len(n.pods) == 0 {
			continue
		}
		out.CurrentNumberScheduled++
		pod := n.pods[0]
		if s.updated(pod) {
			out.UpdatedNumberScheduled++
		}
		if !podstate.Active(pod) {
			continue
		}
		// Either of two pods serves the node during a surge.
		ready, available := false, false
		for _, pod := range n.pods {
			wait, isReady := podstate.AvailableIn(pod, time.Duration(s.ds.Spec.MinReadySeconds)*time.Second, s.now)
			if !isReady || !podstate.Active(pod) {
				continue
			}
			ready, available = true, available || wait == 0
			if wait > 0 && (next == 0 || wait < next) {
				next = wait
			}
		}
		if ready {
			out.NumberReady++
		}
		if available {
			out.NumberAvailable++
		}
	}
	out.NumberUnavailable = out.DesiredNumberScheduled - out.NumberAvailable
	return out, next
}

func backoffKey(ds *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", ds.UID, ds.Generation, node)
}
