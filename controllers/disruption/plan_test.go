package disruption

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Unix(1e9, 0)

func newBudget(min, max string) *policyv1.PodDisruptionBudget {
	pdb := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Generation: 3},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	if min != "" {
		v := intstr.Parse(min)
		pdb.Spec.MinAvailable = &v
	}
	if max != "" {
		v := intstr.Parse(max)
		pdb.Spec.MaxUnavailable = &v
	}
	return pdb
}

// parsePods reads pods such as "a b:unready c:going". Without a mark they are ready.
func parsePods(text string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, word := range strings.Fields(text) {
		name, mark, _ := strings.Cut(word, ":")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "web"}}}
		p.Status.Phase = corev1.PodRunning
		if mark != "unready" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if mark == "going" {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		out = append(out, p)
	}
	return out
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		name     string
		min, max string
		pods     string
		scale    int
		granted  map[string]time.Duration // ago
		want     string                   // allowed, healthy of desired of expected, granted
		again    time.Duration
	}{
		{"minAvailable", "2", "", "a b c", 0, nil, "1: 3 of 2 of 3, 0", 0},
		{"minAvailable, none to spare", "3", "", "a b c", 0, nil, "0: 3 of 3 of 3, 0", 0},
		{"minAvailable of too few", "5", "", "a", 0, nil, "0: 1 of 5 of 1, 0", 0},
		{"unready ones do not count", "1", "", "a b:unready c:going", 0, nil, "0: 1 of 1 of 3, 0", 0},
		{"minAvailable in percent, rounded up", "50%", "", "a b c", 3, nil, "1: 3 of 2 of 3, 0", 0},
		{"maxUnavailable", "", "1", "a b c", 3, nil, "1: 3 of 2 of 3, 0", 0},
		{"maxUnavailable by the wanted scale", "", "1", "a b", 3, nil, "0: 2 of 2 of 3, 0", 0},
		{"maxUnavailable in percent, rounded up", "", "30%", "a b c d e", 5, nil, "2: 5 of 3 of 5, 0", 0},
		{"maxUnavailable 0", "", "0", "a b c", 3, nil, "0: 3 of 3 of 3, 0", 0},
		{"scaled to nothing", "", "1", "a", 0, nil, "0: 1 of 0 of 0, 0", 0},
		{"no pods", "0", "", "", 0, nil, "0: 0 of 0 of 0, 0", 0},
		{"a granted eviction", "1", "", "a b c", 0, map[string]time.Duration{"a": 30 * time.Second}, "1: 2 of 1 of 3, 1", 90 * time.Second},
		{"an eviction under way", "1", "", "a:going b c", 0, map[string]time.Duration{"a": time.Second}, "1: 2 of 1 of 3, 0", 0},
		{"an eviction done", "1", "", "b c", 0, map[string]time.Duration{"a": time.Second}, "1: 2 of 1 of 2, 0", 0},
		{"an eviction that came to nothing", "1", "", "a b c", 0, map[string]time.Duration{"a": time.Hour}, "2: 3 of 1 of 3, 0", 0},
	} {
		pdb := newBudget(c.min, c.max)
		for name, ago := range c.granted {
			if pdb.Status.DisruptedPods == nil {
				pdb.Status.DisruptedPods = map[string]metav1.Time{}
			}
			pdb.Status.DisruptedPods[name] = metav1.NewTime(now.Add(-ago))
		}
		s, again, _ := state{pdb: pdb, pods: parsePods(c.pods), scale: c.scale, now: now}.status()
		got := fmt.Sprintf("%d: %d of %d of %d, %d", s.DisruptionsAllowed, s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, len(s.DisruptedPods))
		if got != c.want || again != c.again || s.ObservedGeneration != 3 {
			t.Errorf("%s: %q again after %s, want %q after %s", c.name, got, again, c.want, c.again)
		}
		if want := s.DisruptionsAllowed > 0; len(s.Conditions) != 1 || (s.Conditions[0].Status == metav1.ConditionTrue) != want {
			t.Errorf("%s: conditions %+v", c.name, s.Conditions)
		}
	}
}

func TestUnknownScaleAllowsNothing(t *testing.T) {
	pdb := newBudget("", "1")
	pdb.Status.DisruptionsAllowed = 2
	s, _, _ := state{pdb: pdb, pods: parsePods("a b c"), scaleErr: errors.New("who knows"), now: now}.status()
	if s.DisruptionsAllowed != 0 || len(s.Conditions) != 1 || s.Conditions[0].Reason != policyv1.SyncFailedReason || s.Conditions[0].Message != "who knows" {
		t.Errorf("%+v", s)
	}
	pdb.Status = s
	if again, _, _ := (state{pdb: pdb, scaleErr: errors.New("who knows"), now: now.Add(time.Hour)}).status(); fmt.Sprint(again) != fmt.Sprint(s) {
		t.Errorf("the same failure changes the status: %+v", again)
	}
}

func TestStaleMarks(t *testing.T) {
	marked := func(ago time.Duration, change func(*corev1.Pod)) *corev1.Pod {
		p := parsePods("a")[0]
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-ago))})
		if change != nil {
			change(p)
		}
		return p
	}
	if wait, ok := stale(marked(time.Minute, nil), now); !ok || wait != time.Minute {
		t.Errorf("after a minute: %s, %v", wait, ok)
	}
	if wait, ok := stale(marked(time.Hour, nil), now); !ok || wait != 0 {
		t.Errorf("after an hour: %s, %v", wait, ok)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"going": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} },
		"ended": func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"false": func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse },
	} {
		if _, ok := stale(marked(time.Hour, change), now); ok {
			t.Errorf("%s: has a mark to take back", name)
		}
	}
}
