package daemonset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newSet() *appsv1.DaemonSet {
	l := map[string]string{"app": "web"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web", Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
			},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType},
		},
	}
}

func newNode(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}}, Spec: corev1.NodeSpec{Taints: taints}}
}

func TestWhichNodesFit(t *testing.T) {
	selector := func(zone string) func(*appsv1.DaemonSet) {
		return func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeSelector = map[string]string{"zone": zone} }
	}
	affinity := func(zone string) func(*appsv1.DaemonSet) {
		return func(ds *appsv1.DaemonSet) {
			ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
				}}},
			}}
		}
	}
	bound := func(node string) func(*appsv1.DaemonSet) {
		return func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeName = node }
	}
	hostNetwork := func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.HostNetwork = true }
	tolerant := func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	taint := func(key string, effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: key, Effect: effect}}
	}
	for name, c := range map[string]struct {
		change    func(*appsv1.DaemonSet)
		taints    []corev1.Taint
		run, stay bool
	}{
		"plain":                        {run: true, stay: true},
		"node selector":                {change: selector("a"), run: true, stay: true},
		"other node selector":          {change: selector("b")},
		"affinity":                     {change: affinity("a"), run: true, stay: true},
		"other affinity":               {change: affinity("b")},
		"bound":                        {change: bound("n1"), run: true, stay: true},
		"bound elsewhere":              {change: bound("n2")},
		"taint NoSchedule":             {taints: taint("x", corev1.TaintEffectNoSchedule), stay: true},
		"taint NoExecute":              {taints: taint("x", corev1.TaintEffectNoExecute)},
		"taint PreferNoSchedule":       {taints: taint("x", corev1.TaintEffectPreferNoSchedule), run: true, stay: true},
		"tolerated":                    {change: tolerant, taints: taint("x", corev1.TaintEffectNoExecute), run: true, stay: true},
		"unschedulable":                {taints: taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), run: true, stay: true},
		"not ready":                    {taints: taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), run: true, stay: true},
		"unreachable":                  {taints: taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute), run: true, stay: true},
		"disk pressure":                {taints: taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), run: true, stay: true},
		"memory pressure":              {taints: taint(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule), run: true, stay: true},
		"pid pressure":                 {taints: taint(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule), run: true, stay: true},
		"no network":                   {taints: taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), stay: true},
		"no network, host network pod": {change: hostNetwork, taints: taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), run: true, stay: true},
	} {
		ds := newSet()
		if c.change != nil {
			c.change(ds)
		}
		if run, stay := newFitter(ds).fit(newNode("n1", c.taints...)); run != c.run || stay != c.stay {
			t.Errorf("%s: run %v, stay %v; want %v, %v", name, run, stay, c.run, c.stay)
		}
	}
}

func TestPodIsPinnedAndTolerant(t *testing.T) {
	ds := newSet()
	minute := int64(60)
	ds.Spec.Template.Spec.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &minute},
	}
	preferred := []corev1.PreferredSchedulingTerm{{Weight: 1}}
	ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}, {}}},
		PreferredDuringSchedulingIgnoredDuringExecution: preferred,
	}}
	p := newPod(ds, "n1", "abc")
	if nodeOf(p) != "n1" || p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "abc" || p.Labels["app"] != "web" {
		t.Errorf("node %q, labels %v", nodeOf(p), p.Labels)
	}
	if len(p.Spec.Tolerations) != 6 || p.Spec.Tolerations[0].TolerationSeconds != nil {
		t.Errorf("tolerations %v", p.Spec.Tolerations)
	}
	if len(p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Error("the preferred affinity is lost")
	}
	if len(ds.Spec.Template.Spec.Tolerations) != 1 || len(ds.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != 2 {
		t.Error("the template was changed")
	}
}
