package tainteviction

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	now := time.Unix(1e9, 0)
	added := metav1.NewTime(now.Add(-100 * time.Second))
	taint := func(key string) corev1.Taint {
		return corev1.Taint{Key: key, Value: "v", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	}
	for300, for10, forever := int64(300), int64(10), (*int64)(nil)
	exists := func(key string, s *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: s}
	}
	for _, c := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		scheduled   time.Duration // ago
		want        verdict
		in          time.Duration
	}{
		{"no taint", nil, nil, 0, stay, 0},
		{"only NoSchedule", []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}, nil, time.Hour, stay, 0},
		{"not tolerated", []corev1.Taint{taint("a")}, nil, time.Hour, evict, 0},
		{"another is tolerated", []corev1.Taint{taint("a")}, []corev1.Toleration{exists("b", forever)}, time.Hour, evict, 0},
		{"for ever", []corev1.Taint{taint("a")}, []corev1.Toleration{exists("a", forever)}, time.Hour, stay, 0},
		{"everything for ever", []corev1.Taint{taint("a")}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, time.Hour, stay, 0},
		{"by value", []corev1.Taint{taint("a")}, []corev1.Toleration{{Key: "a", Value: "v"}}, time.Hour, stay, 0},
		{"other value", []corev1.Taint{taint("a")}, []corev1.Toleration{{Key: "a", Value: "w"}}, time.Hour, evict, 0},
		{"counted from the taint", []corev1.Taint{taint("a")}, []corev1.Toleration{exists("a", &for300)}, time.Hour, wait, 200 * time.Second},
		{"counted from the binding when later", []corev1.Taint{taint("a")}, []corev1.Toleration{exists("a", &for300)}, 40 * time.Second, wait, 260 * time.Second},
		{"time is over", []corev1.Taint{taint("a")}, []corev1.Toleration{exists("a", &for10)}, time.Hour, evict, 0},
		{"shortest of two", []corev1.Taint{taint("a")}, []corev1.Toleration{exists("a", &for300), exists("a", &for10)}, time.Hour, evict, 0},
		{"two taints, one untolerated", []corev1.Taint{taint("a"), taint("b")}, []corev1.Toleration{exists("a", forever)}, time.Hour, evict, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: c.tolerations}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-c.scheduled))},
			}}}
			what, at := judge(pod, c.taints, func(*corev1.Taint) time.Time { return now }, now)
			if what != c.want || (what == wait && at.Sub(now) != c.in) {
				t.Errorf("verdict %d in %s, want %d in %s", what, at.Sub(now), c.want, c.in)
			}
		})
	}
}
