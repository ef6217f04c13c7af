package daemonset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// automatic are the taints that every daemon pod tolerates for good: it is not
// evicted from a node in trouble, and it is what repairs some of them.
var automatic = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
}

// networkless is tolerated by pods on the host's network, which need no other.
var networkless = corev1.Toleration{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}

// addTolerations adds the automatic tolerations; one of the template for the
// same taint gives way, for it may end after a time.
func addTolerations(spec *corev1.PodSpec) {
	add := automatic
	if spec.HostNetwork {
		add = append(slices.Clone(automatic), networkless)
	}
	for _, t := range add {
		i := slices.IndexFunc(spec.Tolerations, func(have corev1.Toleration) bool { return have.MatchToleration(&t) })
		if i >= 0 {
			spec.Tolerations[i] = t
		} else {
			spec.Tolerations = append(spec.Tolerations, t)
		}
	}
}

// newPod makes the pod of a node. hash is that of the template's revision.
func newPod(ds *appsv1.DaemonSet, node, hash string) *corev1.Pod {
	pod := runtime.PodFrom(&ds.Spec.Template, ds, kind)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	addTolerations(&pod.Spec)
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// What the template requires of nodes has been met by this one.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
			}},
		}},
	}
	return pod
}

// nodeOf returns the node that a pod runs on or is pinned to, or "".
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// fitter tells which nodes fit the pods of one DaemonSet.
type fitter struct {
	spec     corev1.PodSpec
	affinity nodeaffinity.RequiredNodeAffinity
}

func newFitter(ds *appsv1.DaemonSet) fitter {
	spec := ds.Spec.Template.Spec
	spec.Tolerations = slices.Clone(spec.Tolerations)
	addTolerations(&spec)
	return fitter{spec: spec, affinity: nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: spec})}
}

// fit tells whether a pod is to run on the node, and whether one that is there
// may stay: a taint NoSchedule keeps new ones out only.
func (f fitter) fit(node *corev1.Node) (run, stay bool) {
	if f.spec.NodeName != "" && f.spec.NodeName != node.Name {
		return false, false
	}
	if ok, err := f.affinity.Match(node); err != nil || !ok {
		return false, false
	}
	run, stay = true, true
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || tolerated(f.spec.Tolerations, taint) {
			continue
		}
		run = false
		if taint.Effect == corev1.TaintEffectNoExecute {
			stay = false
		}
	}
	return run, stay
}

func tolerated(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Background(), taint, true)
	})
}
