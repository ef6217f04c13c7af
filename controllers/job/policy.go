package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// verdict is what the pod failure policy says of a failed pod.
type verdict struct {
	action  batchv1.PodFailurePolicyAction // Count when no rule applies
	message string
}

// judge applies the Job's pod failure policy, first rule first. Pods that have
// not reached the phase Failed count.
func judge(job *batchv1.Job, pod *corev1.Pod) verdict {
	if job.Spec.PodFailurePolicy == nil || pod.Status.Phase != corev1.PodFailed {
		return verdict{action: batchv1.PodFailurePolicyActionCount}
	}
	for i, rule := range job.Spec.PodFailurePolicy.Rules {
		if rule.Action == batchv1.PodFailurePolicyActionFailIndex && job.Spec.BackoffLimitPerIndex == nil {
			continue
		}
		if rule.OnExitCodes != nil {
			if c := exited(rule.OnExitCodes, pod); c != nil {
				return verdict{rule.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d",
					c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode, rule.Action, i)}
			}
		} else if t := conditioned(rule.OnPodConditions, pod); t != "" {
			return verdict{rule.Action, fmt.Sprintf("Pod %s/%s has condition %s matching %s rule at index %d", pod.Namespace, pod.Name, t, rule.Action, i)}
		}
	}
	return verdict{action: batchv1.PodFailurePolicyActionCount}
}

// exited returns the first container whose exit code meets the requirement. A
// container that succeeded meets none.
func exited(r *batchv1.PodFailurePolicyOnExitCodesRequirement, pod *corev1.Pod) *corev1.ContainerStatus {
	all := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses)
	for i := range all {
		c := &all[i]
		if r.ContainerName != nil && *r.ContainerName != c.Name || c.State.Terminated == nil || c.State.Terminated.ExitCode == 0 {
			continue
		}
		listed := slices.Contains(r.Values, c.State.Terminated.ExitCode)
		if listed == (r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
			return c
		}
	}
	return nil
}

func conditioned(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, pod *corev1.Pod) corev1.PodConditionType {
	for _, p := range patterns {
		want := p.Status
		if want == "" {
			want = corev1.ConditionTrue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == p.Type && c.Status == want {
				return c.Type
			}
		}
	}
	return ""
}

// succeeds returns the rule of the success policy that the completed indexes
// meet, or -1.
func succeeds(job *batchv1.Job, completed indexes) int {
	if job.Spec.SuccessPolicy == nil || job.Spec.Completions == nil {
		return -1
	}
	for i, rule := range job.Spec.SuccessPolicy.Rules {
		have, want := completed.len(), int(*job.Spec.Completions)
		if rule.SucceededIndexes != nil {
			only := parseIndexes(*rule.SucceededIndexes, int(*job.Spec.Completions))
			have, want = completed.common(only), only.len()
		}
		if rule.SucceededCount != nil {
			want = int(*rule.SucceededCount)
		}
		if want > 0 && have >= want {
			return i
		}
	}
	return -1
}
