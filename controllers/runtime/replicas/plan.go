package replicas

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// burst bounds the pods created or deleted in one reconcile; upstream's value.
const burst = 500

// plan is what a ReplicaSet needs.
type plan struct {
	create int
	delete []*corev1.Pod
}

// decide compares the wanted replicas with the active pods. related are the
// active pods of all ReplicaSets of the same Deployment: of two equal pods the
// one that shares its node with more of them goes first.
func decide(rs *appsv1.ReplicaSet, active, related []*corev1.Pod, now time.Time) plan {
	want := int(*rs.Spec.Replicas)
	switch {
	case len(active) < want:
		return plan{create: min(want-len(active), burst)}
	case len(active) > want:
		n := min(len(active)-want, burst)
		return plan{delete: victims(active, related, n, now)}
	}
	return plan{}
}

// victims returns the n pods whose loss hurts least.
func victims(active, related []*corev1.Pod, n int, now time.Time) []*corev1.Pod {
	if n == len(active) {
		return active
	}
	onNode := map[string]int{}
	for _, p := range related {
		if podstate.Active(p) {
			onNode[p.Spec.NodeName]++
		}
	}
	sorted := slices.Clone(active)
	slices.SortStableFunc(sorted, func(a, b *corev1.Pod) int { return compare(a, b, onNode, now) })
	return sorted[:n]
}

// compare orders pods by how readily they are given up: not bound, then not
// running, then not ready, then by deletion cost, crowded node, short time
// ready, many restarts, youth. The order is that of the ReplicaSet controller
// as documented for the annotation controller.kubernetes.io/pod-deletion-cost.
func compare(a, b *corev1.Pod, onNode map[string]int, now time.Time) int {
	return cmp.Or(
		falseFirst(a.Spec.NodeName != "", b.Spec.NodeName != ""),
		cmp.Compare(phaseOrder(a), phaseOrder(b)),
		falseFirst(podstate.Ready(a), podstate.Ready(b)),
		cmp.Compare(deletionCost(a), deletionCost(b)),
		-cmp.Compare(onNode[a.Spec.NodeName], onNode[b.Spec.NodeName]),
		cmp.Compare(magnitude(readySince(a), now), magnitude(readySince(b), now)),
		-cmp.Compare(podstate.Restarts(a), podstate.Restarts(b)),
		cmp.Compare(magnitude(a.CreationTimestamp, now), magnitude(b.CreationTimestamp, now)),
		cmp.Compare(a.UID, b.UID),
	)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case !a:
		return -1
	}
	return 1
}

func phaseOrder(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodPending, "":
		return 0
	case corev1.PodUnknown:
		return 1
	}
	return 2
}

func deletionCost(p *corev1.Pod) int32 {
	n, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

func readySince(p *corev1.Pod) metav1.Time {
	if c := podstate.Condition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime
	}
	return metav1.Time{}
}

// magnitude is the power of two of an age. Comparing only that keeps the choice
// among pods of about one age random, which spreads it over the nodes.
func magnitude(t metav1.Time, now time.Time) int {
	age := now.Sub(t.Time)
	if t.IsZero() || age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

// split sorts pods into replicas and pods on their way out.
func split(pods []*corev1.Pod) (active, terminating []*corev1.Pod) {
	for _, p := range pods {
		switch {
		case podstate.Active(p):
			active = append(active, p)
		case !podstate.Terminal(p):
			terminating = append(terminating, p)
		}
	}
	return active, terminating
}

// status computes the status of rs. manageErr is why pods could not be created
// or deleted. It also returns when a pod that is ready now becomes available,
// or 0.
func status(rs *appsv1.ReplicaSet, active, terminating []*corev1.Pod, manageErr error, now time.Time) (appsv1.ReplicaSetStatus, time.Duration) {
	s := *rs.Status.DeepCopy()
	s.ObservedGeneration = rs.Generation
	s.Replicas = int32(len(active))
	s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = 0, 0, 0
	going := int32(len(terminating))
	s.TerminatingReplicas = &going
	var next time.Duration
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, p := range active {
		if template.Matches(labels.Set(p.Labels)) {
			s.FullyLabeledReplicas++
		}
		wait, ready := podstate.AvailableIn(p, time.Duration(rs.Spec.MinReadySeconds)*time.Second, now)
		if !ready {
			continue
		}
		s.ReadyReplicas++
		if wait == 0 {
			s.AvailableReplicas++
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	failing := slices.IndexFunc(s.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	switch {
	case manageErr == nil && failing >= 0:
		s.Conditions = slices.Delete(s.Conditions, failing, failing+1)
	case manageErr != nil && failing < 0:
		reason := "FailedCreate"
		if len(active) > int(*rs.Spec.Replicas) {
			reason = "FailedDelete"
		}
		s.Conditions = append(s.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: manageErr.Error(),
		})
	}
	return s, next
}
