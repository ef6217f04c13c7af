package job

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestPodFailurePolicy(t *testing.T) {
	name, limit := "main", int32(1)
	exit := func(container string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
	}
	job := &batchv1.Job{Spec: batchv1.JobSpec{PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: &name, Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget}}},
		{Action: batchv1.PodFailurePolicyActionFailIndex, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpNotIn, Values: []int32{1, 2}}},
	}}}}
	disrupted := []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	for what, c := range map[string]struct {
		status   corev1.PodStatus
		perIndex bool
		want     batchv1.PodFailurePolicyAction
	}{
		"the code":                      {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exit("main", 42)}}, want: batchv1.PodFailurePolicyActionFailJob},
		"the code of an init container": {status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{exit("main", 42)}}, want: batchv1.PodFailurePolicyActionFailJob},
		"another container's":           {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exit("side", 42)}}, want: batchv1.PodFailurePolicyActionCount},
		"another code, per index":       {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exit("side", 42)}}, perIndex: true, want: batchv1.PodFailurePolicyActionFailIndex},
		"an excepted code, per index":   {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exit("main", 2)}}, perIndex: true, want: batchv1.PodFailurePolicyActionCount},
		"success is no match":           {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exit("main", 0)}}, perIndex: true, want: batchv1.PodFailurePolicyActionCount},
		"a disruption":                  {status: corev1.PodStatus{Conditions: disrupted}, want: batchv1.PodFailurePolicyActionIgnore},
		"the first rule wins":           {status: corev1.PodStatus{Conditions: disrupted, ContainerStatuses: []corev1.ContainerStatus{exit("main", 42)}}, want: batchv1.PodFailurePolicyActionFailJob},
		"no rule":                       {want: batchv1.PodFailurePolicyActionCount},
	} {
		j := job.DeepCopy()
		if c.perIndex {
			j.Spec.BackoffLimitPerIndex = &limit
		}
		c.status.Phase = corev1.PodFailed
		if got := judge(j, &corev1.Pod{Status: c.status}); got.action != c.want {
			t.Errorf("%s: %s (%s), want %s", what, got.action, got.message, c.want)
		}
		c.status.Phase = corev1.PodRunning
		if got := judge(j, &corev1.Pod{Status: c.status}); got.action != batchv1.PodFailurePolicyActionCount {
			t.Errorf("%s, running: %s", what, got.action)
		}
	}
}

func TestSuccessPolicy(t *testing.T) {
	text, n := func(s string) *string { return &s }, func(n int32) *int32 { return &n }
	for _, c := range []struct {
		rules     []batchv1.SuccessPolicyRule
		completed string
		want      int
	}{
		{nil, "0-9", -1},
		{[]batchv1.SuccessPolicyRule{{SucceededIndexes: text("0,2-3")}}, "0,2", -1},
		{[]batchv1.SuccessPolicyRule{{SucceededIndexes: text("0,2-3")}}, "0-3", 0},
		{[]batchv1.SuccessPolicyRule{{SucceededCount: n(2)}}, "5", -1},
		{[]batchv1.SuccessPolicyRule{{SucceededCount: n(2)}}, "5,7", 0},
		{[]batchv1.SuccessPolicyRule{{SucceededIndexes: text("0-4"), SucceededCount: n(2)}}, "4-9", -1},
		{[]batchv1.SuccessPolicyRule{{SucceededIndexes: text("0-4"), SucceededCount: n(2)}}, "3-9", 0},
		{[]batchv1.SuccessPolicyRule{{SucceededIndexes: text("0")}, {SucceededIndexes: text("1")}}, "1", 1},
	} {
		job := &batchv1.Job{Spec: batchv1.JobSpec{Completions: n(10), SuccessPolicy: &batchv1.SuccessPolicy{Rules: c.rules}}}
		if got := succeeds(job, parseIndexes(c.completed, 10)); got != c.want {
			t.Errorf("%v of %s: rule %d, want %d", c.rules, c.completed, got, c.want)
		}
	}
}
