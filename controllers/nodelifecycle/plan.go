package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Upstream's values.
const (
	startupGrace     = time.Minute // for a node that never reported
	evictionInterval = 10 * time.Second
	slowInterval     = 100 * time.Second // in a large zone that is mostly down
	largeZone        = 50                // nodes
	unhealthyShare   = 0.55
)

// heartbeats are the conditions that become Unknown together.
var heartbeats = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

func condition(conditions []corev1.NodeCondition, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

// readiness is the status of the node's Ready condition; Unknown without one.
func readiness(n *corev1.Node) corev1.ConditionStatus {
	if c := condition(n.Status.Conditions, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// silenced returns the node's conditions once it has fallen silent, and whether
// they differ from what they are.
func silenced(n *corev1.Node, now time.Time) ([]corev1.NodeCondition, bool) {
	out := slices.Clone(n.Status.Conditions)
	changed := false
	at := metav1.NewTime(now)
	for _, t := range heartbeats {
		c := condition(out, t)
		if c == nil {
			out = append(out, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message: "Kubelet never posted node status.", LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: at,
			})
			changed = true
			continue
		}
		if c.Status != corev1.ConditionUnknown {
			c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.", at
			changed = true
		}
	}
	return out, changed
}

// managed are the taints that follow from a node's state, by key.
var managed = map[string]bool{
	corev1.TaintNodeNotReady:           true,
	corev1.TaintNodeUnreachable:        true,
	corev1.TaintNodeUnschedulable:      true,
	corev1.TaintNodeMemoryPressure:     true,
	corev1.TaintNodeDiskPressure:       true,
	corev1.TaintNodePIDPressure:        true,
	corev1.TaintNodeNetworkUnavailable: true,
}

// wantedTaints returns the managed taints that the node should have.
func wantedTaints(n *corev1.Node) (schedule, execute []corev1.Taint) {
	add := func(key string) {
		schedule = append(schedule, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if c := condition(n.Status.Conditions, corev1.NodeReady); c != nil {
		key := ""
		switch c.Status {
		case corev1.ConditionFalse:
			key = corev1.TaintNodeNotReady
		case corev1.ConditionUnknown:
			key = corev1.TaintNodeUnreachable
		}
		if key != "" {
			add(key)
			execute = append(execute, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
	}
	for t, key := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure:     corev1.TaintNodeMemoryPressure,
		corev1.NodeDiskPressure:       corev1.TaintNodeDiskPressure,
		corev1.NodePIDPressure:        corev1.TaintNodePIDPressure,
		corev1.NodeNetworkUnavailable: corev1.TaintNodeNetworkUnavailable,
	} {
		if c := condition(n.Status.Conditions, t); c != nil && c.Status == corev1.ConditionTrue {
			add(key)
		}
	}
	if n.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable)
	}
	slices.SortFunc(schedule, func(a, b corev1.Taint) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return schedule, execute
}

// taints returns the node's taints as they should be. mayExecute is whether a
// NoExecute taint may be added now; needed reports that one is to be added and
// was not. suspend takes NoExecute taints off.
func taints(n *corev1.Node, mayExecute func() bool, suspend bool, now time.Time) (out []corev1.Taint, changed, needed bool) {
	schedule, execute := wantedTaints(n)
	if suspend {
		execute = nil
	}
	has := func(list []corev1.Taint, t *corev1.Taint) bool {
		return slices.ContainsFunc(list, func(o corev1.Taint) bool { return o.MatchTaint(t) })
	}
	// A node that never reported carries the not-ready taint from its admission;
	// it stays until the node has said how it is.
	reported := condition(n.Status.Conditions, corev1.NodeReady) != nil
	swap := false // one NoExecute taint takes the place of another: no eviction is begun
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		ours := managed[t.Key] && (t.Effect == corev1.TaintEffectNoSchedule ||
			t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable))
		if !ours || has(schedule, t) || has(execute, t) || (!reported && t.Key == corev1.TaintNodeNotReady) {
			out = append(out, *t)
			continue
		}
		changed = true
		if t.Effect == corev1.TaintEffectNoExecute && len(execute) > 0 {
			swap = true
		}
	}
	at := metav1.NewTime(now)
	for _, t := range schedule {
		if !has(out, &t) {
			t.TimeAdded = &at
			out, changed = append(out, t), true
		}
	}
	for _, t := range execute {
		if has(out, &t) {
			continue
		}
		if !swap && !mayExecute() {
			needed = true
			continue
		}
		t.TimeAdded = &at
		out, changed = append(out, t), true
	}
	return out, changed, needed
}

// zoneState is how much of a zone is down.
type zoneState struct{ ready, notReady int }

func (z zoneState) full() bool { return z.ready == 0 && z.notReady > 0 }

func (z zoneState) partial() bool {
	return !z.full() && z.notReady > 2 && float64(z.notReady)/float64(z.ready+z.notReady) >= unhealthyShare
}

// interval is the least time between two nodes of the zone getting a NoExecute
// taint; 0 means that none may.
func (z zoneState) interval() time.Duration {
	if !z.partial() {
		return evictionInterval
	}
	if z.ready+z.notReady > largeZone {
		return slowInterval
	}
	return 0
}

func zoneOf(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}

// survey counts the nodes by zone, and tells whether no zone has a ready node
// left though there are nodes. A node that has never reported is not lost, it is
// just joining, and does not count.
func survey(nodes []*corev1.Node) (zones map[string]zoneState, allDown bool) {
	zones = map[string]zoneState{}
	for _, n := range nodes {
		if condition(n.Status.Conditions, corev1.NodeReady) == nil {
			continue
		}
		z := zones[zoneOf(n)]
		if readiness(n) == corev1.ConditionTrue {
			z.ready++
		} else {
			z.notReady++
		}
		zones[zoneOf(n)] = z
	}
	allDown = len(zones) > 0
	for _, z := range zones {
		allDown = allDown && z.full()
	}
	return zones, allDown
}
