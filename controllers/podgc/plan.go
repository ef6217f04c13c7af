package podgc

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// victim is a pod to delete.
type victim struct {
	pod *corev1.Pod
	why string // message of its condition; empty for a pod that had ended
}

// plan picks the pods to delete. nodes are the nodes there are, by name; gone
// tells whether a missing one is gone for good.
func plan(pods []*corev1.Pod, nodes map[string]*corev1.Node, gone func(node string) bool, threshold int) []victim {
	var out []victim
	var ended []*corev1.Pod
	for _, p := range pods {
		node := nodes[p.Spec.NodeName]
		switch {
		case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
			out = append(out, victim{p, "PodGC: deleting a terminating pod that was not scheduled"})
		case p.Spec.NodeName != "" && node == nil:
			if gone(p.Spec.NodeName) {
				out = append(out, victim{p, "PodGC: node no longer exists"})
			}
		case node != nil && p.DeletionTimestamp != nil && outOfService(node):
			out = append(out, victim{p, "PodGC: node is out of service"})
		case podstate.Terminal(p) && p.DeletionTimestamp == nil:
			ended = append(ended, p)
		}
	}
	if threshold > 0 && len(ended) > threshold {
		slices.SortFunc(ended, func(a, b *corev1.Pod) int {
			return cmp.Or(evictedFirst(a, b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
		})
		for _, p := range ended[:len(ended)-threshold] {
			out = append(out, victim{p, ""})
		}
	}
	return out
}

func evictedFirst(a, b *corev1.Pod) int {
	ea, eb := a.Status.Reason == "Evicted", b.Status.Reason == "Evicted"
	switch {
	case ea == eb:
		return 0
	case ea:
		return -1
	}
	return 1
}

// outOfService reports whether an operator has said that the node is off for
// good, and it is not ready.
func outOfService(n *corev1.Node) bool {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return !ready && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
