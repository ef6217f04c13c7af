package statefulset

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// ordinalOf returns the number of a pod of the set, or false when the name is
// not of the set's.
func ordinalOf(set, pod string) (int, bool) {
	digits, ok := strings.CutPrefix(pod, set+"-")
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n < 0 || strconv.FormatInt(n, 10) != digits {
		return 0, false
	}
	return int(n), true
}

func podName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

func claimName(set *appsv1.StatefulSet, claim *corev1.PersistentVolumeClaim, ordinal int) string {
	return claim.Name + "-" + podName(set, ordinal)
}

// first is the lowest number, count how many pods are wanted.
func first(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

func count(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// newPod makes the pod of a number from the template of a revision.
func newPod(set *appsv1.StatefulSet, t *corev1.PodTemplateSpec, revision string, ordinal int) *corev1.Pod {
	pod := runtime.PodFrom(t, set, kind)
	pod.GenerateName = ""
	pod.Name = podName(set, ordinal)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	identify(pod, ordinal)
	pod.Spec.Hostname = pod.Name
	pod.Spec.Subdomain = set.Spec.ServiceName
	for i := range set.Spec.VolumeClaimTemplates {
		claim := &set.Spec.VolumeClaimTemplates[i]
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == claim.Name })
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: claim.Name,
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: claimName(set, claim, ordinal),
			}},
		})
	}
	return pod
}

// identify sets the labels that tell a pod's number.
func identify(pod *corev1.Pod, ordinal int) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

func identified(pod *corev1.Pod, ordinal int) bool {
	return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name && pod.Labels[appsv1.PodIndexLabel] == strconv.Itoa(ordinal)
}

// newClaims makes the claims of a number. Their owners are set later, see owners.
func newClaims(set *appsv1.StatefulSet, ordinal int) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		claim := t.DeepCopy()
		claim.ObjectMeta = metav1.ObjectMeta{
			Name: claimName(set, t, ordinal), Namespace: set.Namespace,
			Labels: maps.Clone(t.Labels), Annotations: maps.Clone(t.Annotations), Finalizers: slices.Clone(t.Finalizers),
		}
		if set.Spec.Selector != nil && len(set.Spec.Selector.MatchLabels) > 0 {
			if claim.Labels == nil {
				claim.Labels = map[string]string{}
			}
			maps.Copy(claim.Labels, set.Spec.Selector.MatchLabels)
		}
		claim.Status = corev1.PersistentVolumeClaimStatus{}
		out = append(out, claim)
	}
	return out
}
