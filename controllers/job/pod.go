package job

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// indexVariable is the environment variable that tells a container its index.
const indexVariable = "JOB_COMPLETION_INDEX"

func indexed(job *batchv1.Job) bool {
	return job.Spec.CompletionMode != nil && *job.Spec.CompletionMode == batchv1.IndexedCompletion && job.Spec.Completions != nil
}

// onlyReplaceFailed reports whether a pod is replaced when it has ended, and not
// already when it is being deleted.
func onlyReplaceFailed(job *batchv1.Job) bool {
	p := job.Spec.PodReplacementPolicy
	return p != nil && *p == batchv1.Failed || job.Spec.PodFailurePolicy != nil
}

// indexOf returns a pod's completion index, or -1.
func indexOf(pod *corev1.Pod) int {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return -1
	}
	return i
}

func hasFinalizer(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// failed reports whether a pod has failed. One that is being deleted has, unless
// the Job waits for its end; one that was never bound has no end to wait for.
func failed(job *batchv1.Job, pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.DeletionTimestamp == nil {
		return false
	}
	return !onlyReplaceFailed(job) || pod.Spec.NodeName == "" || job.DeletionTimestamp != nil
}

func terminating(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && !podstate.Terminal(pod)
}

// finishTime is when a pod ended, as well as it can be told.
func finishTime(pod *corev1.Pod) time.Time {
	var t time.Time
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated != nil && c.State.Terminated.FinishedAt.After(t) {
			t = c.State.Terminated.FinishedAt.Time
		}
	}
	if !t.IsZero() {
		return t
	}
	if pod.DeletionTimestamp != nil {
		t = pod.DeletionTimestamp.Time
		if pod.DeletionGracePeriodSeconds != nil {
			t = t.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		}
		return t
	}
	if c := podstate.Condition(pod, corev1.PodReady); c != nil && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	return pod.CreationTimestamp.Time
}

// counts of a pod's index before it, from its annotations.
func failureCount(pod *corev1.Pod) int {
	n, _ := strconv.Atoi(pod.Annotations[batchv1.JobIndexFailureCountAnnotation])
	return n
}

func ignoredCount(pod *corev1.Pod) int {
	n, _ := strconv.Atoi(pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation])
	return n
}

// creation is a pod to create.
type creation struct {
	index             int // -1 when the Job has no indexes
	failures, ignored int // of the index, before
}

func newPod(job *batchv1.Job, c creation) *corev1.Pod {
	pod := runtime.PodFrom(&job.Spec.Template, job, kind)
	if !hasFinalizer(pod) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if c.index < 0 {
		return pod
	}
	index := strconv.Itoa(c.index)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = index
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = index
	if job.Spec.BackoffLimitPerIndex != nil {
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(c.failures)
		if c.ignored > 0 {
			pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(c.ignored)
		}
	}
	pod.GenerateName = job.Name + "-" + index + "-"
	pod.Spec.Hostname = job.Name + "-" + index
	variable := corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
		FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation),
	}}}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if !slices.ContainsFunc(containers[i].Env, func(e corev1.EnvVar) bool { return e.Name == indexVariable }) {
				containers[i].Env = append(containers[i].Env, variable)
			}
		}
	}
	return pod
}
