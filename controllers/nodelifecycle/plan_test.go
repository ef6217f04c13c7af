package nodelifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
)

var now = time.Unix(1e9, 0)

func node(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
		}},
	}
}

func names(list []corev1.Taint) string {
	var out []string
	for _, t := range list {
		out = append(out, t.Key+":"+string(t.Effect))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

func TestTaintsFollowConditions(t *testing.T) {
	own := corev1.Taint{Key: "example.com/mine", Effect: corev1.TaintEffectNoExecute}
	notReady := func(e corev1.TaintEffect) corev1.Taint { return corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: e} }
	cordoned := node(corev1.ConditionTrue)
	cordoned.Spec.Unschedulable = true
	full := node(corev1.ConditionTrue)
	full.Status.Conditions[1].Status = corev1.ConditionTrue
	silent := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{notReady(corev1.TaintEffectNoSchedule)}}}
	for _, c := range []struct {
		name    string
		node    *corev1.Node
		may     bool
		suspend bool
		want    string
		needed  bool
	}{
		{"ready", node(corev1.ConditionTrue, own), true, false, "[example.com/mine:NoExecute]", false},
		{"recovered", node(corev1.ConditionTrue, notReady(corev1.TaintEffectNoSchedule), notReady(corev1.TaintEffectNoExecute)), true, false, "[]", false},
		{"not ready", node(corev1.ConditionFalse), true, false, "[node.kubernetes.io/not-ready:NoExecute node.kubernetes.io/not-ready:NoSchedule]", false},
		{"not ready, no turn", node(corev1.ConditionFalse), false, false, "[node.kubernetes.io/not-ready:NoSchedule]", true},
		{"from not ready to lost needs no turn", node(corev1.ConditionUnknown, notReady(corev1.TaintEffectNoExecute)), false, false,
			"[node.kubernetes.io/unreachable:NoExecute node.kubernetes.io/unreachable:NoSchedule]", false},
		{"suspended", node(corev1.ConditionUnknown, notReady(corev1.TaintEffectNoExecute)), true, true, "[node.kubernetes.io/unreachable:NoSchedule]", false},
		{"cordoned", cordoned, true, false, "[node.kubernetes.io/unschedulable:NoSchedule]", false},
		{"memory pressure", full, true, false, "[node.kubernetes.io/memory-pressure:NoSchedule]", false},
		{"never reported keeps what admission gave", silent, true, false, "[node.kubernetes.io/not-ready:NoSchedule]", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, changed, needed := taints(c.node, func() bool { return c.may }, c.suspend, now)
			if names(got) != c.want || needed != c.needed {
				t.Errorf("taints %s, needed %v; want %s, %v", names(got), needed, c.want, c.needed)
			}
			if changed != (names(got) != names(c.node.Spec.Taints)) {
				t.Errorf("changed is %v from %s to %s", changed, names(c.node.Spec.Taints), names(got))
			}
			for _, taint := range got {
				if taint.Effect == corev1.TaintEffectNoExecute && managed[taint.Key] && taint.TimeAdded == nil {
					t.Errorf("taint %s has no time", taint.Key)
				}
			}
			c.node.Spec.Taints = got
			if _, again, _ := taints(c.node, func() bool { return c.may }, c.suspend, now); again {
				t.Error("a second look changes it again")
			}
		})
	}
}

func TestSilencedOnce(t *testing.T) {
	n := node(corev1.ConditionTrue)
	list, changed := silenced(n, now)
	if !changed || len(list) != 4 {
		t.Fatalf("changed %v, %d conditions", changed, len(list))
	}
	for _, c := range list {
		if c.Status != corev1.ConditionUnknown {
			t.Errorf("%s is %s", c.Type, c.Status)
		}
	}
	n.Status.Conditions = list
	if _, again := silenced(n, now.Add(time.Hour)); again {
		t.Error("silenced twice")
	}
}

func TestSurveyAndIntervals(t *testing.T) {
	zone := func(z string, ready corev1.ConditionStatus) *corev1.Node {
		n := node(ready)
		n.Labels = map[string]string{corev1.LabelTopologyZone: z}
		return n
	}
	zones, allDown := survey([]*corev1.Node{zone("a", corev1.ConditionTrue), zone("a", corev1.ConditionUnknown), zone("b", corev1.ConditionUnknown)})
	if allDown || zones["/a"] != (zoneState{1, 1}) || !zones["/b"].full() {
		t.Errorf("zones %v, all down %v", zones, allDown)
	}
	if _, allDown := survey([]*corev1.Node{zone("a", corev1.ConditionUnknown), zone("b", corev1.ConditionFalse)}); !allDown {
		t.Error("all zones are down, and it is not seen")
	}
	if _, allDown := survey([]*corev1.Node{{}}); allDown {
		t.Error("a node that is joining counts as lost")
	}
	if _, allDown := survey(nil); allDown {
		t.Error("a cluster without nodes counts as down")
	}
	for _, c := range []struct {
		z    zoneState
		want time.Duration
	}{
		{zoneState{2, 1}, evictionInterval}, {zoneState{1, 2}, evictionInterval}, // three hosts
		{zoneState{0, 3}, evictionInterval}, // a zone of several is gone: its pods move
		{zoneState{4, 6}, 0}, {zoneState{40, 60}, slowInterval}, {zoneState{90, 10}, evictionInterval},
	} {
		if got := c.z.interval(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.z, got, c.want)
		}
	}
}

func TestPulseCountsEventsNotNodeClocks(t *testing.T) {
	c := testingclock.NewFakeClock(now)
	p := newPulse(c)
	n := node(corev1.ConditionTrue)
	p.node(n)
	c.Step(30 * time.Second)
	if got := p.silence("n"); got != 30*time.Second {
		t.Errorf("silent for %s", got)
	}
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(now.Add(-time.Hour)) // its clock is wrong
	p.node(n)
	if got := p.silence("n"); got != 0 {
		t.Errorf("silent for %s after a heartbeat", got)
	}
	c.Step(30 * time.Second)
	p.node(n) // an update by somebody else
	if got := p.silence("n"); got != 30*time.Second {
		t.Errorf("silent for %s, an update without a heartbeat counts", got)
	}
	p.forget("n")
	if got := p.silence("n"); got != 0 {
		t.Errorf("an unknown node is silent for %s", got)
	}
}
