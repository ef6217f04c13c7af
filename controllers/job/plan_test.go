package job

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Unix(1e9, 0)

func newJob(options ...func(*batchv1.Job)) *batchv1.Job {
	one, six := int32(1), int32(6)
	l := map[string]string{"job": "work"}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work", Namespace: "default", UID: "work"},
		Spec: batchv1.JobSpec{
			Parallelism: &one, Completions: &one, BackoffLimit: &six,
			Selector: &metav1.LabelSelector{MatchLabels: l},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c"}}},
			},
		},
	}
	for _, o := range options {
		o(job)
	}
	return job
}

type option = func(*batchv1.Job)

func size(parallelism, completions int32) option {
	return func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = &parallelism, &completions }
}
func queue(parallelism int32) option {
	return func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = &parallelism, nil }
}
func byIndex(j *batchv1.Job) {
	mode := batchv1.IndexedCompletion
	j.Spec.CompletionMode = &mode
}
func limit(n int32) option { return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n } }
func perIndex(n int32) option {
	return func(j *batchv1.Job) { byIndex(j); j.Spec.BackoffLimitPerIndex = &n; j.Spec.BackoffLimit = nil }
}
func maxFailed(n int32) option { return func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = &n } }
func suspend(j *batchv1.Job)   { yes := true; j.Spec.Suspend = &yes }
func wasSuspended(j *batchv1.Job) {
	set(&j.Status, batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "", now)
}
func replaceFailed(j *batchv1.Job) { p := batchv1.Failed; j.Spec.PodReplacementPolicy = &p }
func deadline(seconds int64) option {
	return func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &seconds }
}
func started(ago time.Duration) option {
	return func(j *batchv1.Job) { j.Status.StartTime = &metav1.Time{Time: now.Add(-ago)} }
}
func counted(succeeded, failed int32) option {
	return func(j *batchv1.Job) { j.Status.Succeeded, j.Status.Failed = succeeded, failed }
}
func uncountedPods(succeeded, failed string) option {
	return func(j *batchv1.Job) {
		u := &batchv1.UncountedTerminatedPods{}
		for _, s := range strings.Fields(succeeded) {
			u.Succeeded = append(u.Succeeded, types.UID(s))
		}
		for _, s := range strings.Fields(failed) {
			u.Failed = append(u.Failed, types.UID(s))
		}
		j.Status.UncountedTerminatedPods = u
	}
}
func completed(s string) option { return func(j *batchv1.Job) { j.Status.CompletedIndexes = s } }
func failedIndexes(s string) option {
	return func(j *batchv1.Job) { j.Status.FailedIndexes = &s }
}
func condition(t batchv1.JobConditionType) option {
	return func(j *batchv1.Job) { set(&j.Status, t, corev1.ConditionTrue, "Why", "because", now) }
}
func onFailure(j *batchv1.Job) {
	j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
}
func deleted(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{Time: now} }
func failurePolicy(action batchv1.PodFailurePolicyAction, code int32) option {
	return func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code}},
		}}}
	}
}
func success(count int32) option {
	return func(j *batchv1.Job) {
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: &count}}}
	}
}

// parsePods reads pods such as "a b:failed,#1 c:going": names with what is special
// of them. Without, a pod runs, is ready, and has the finalizer.
func parsePods(t *testing.T, text string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for _, word := range strings.Fields(text) {
		name, marks, _ := strings.Cut(word, ":")
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Finalizers: []string{batchv1.JobTrackingFinalizer}, Annotations: map[string]string{}},
			Spec:       corev1.PodSpec{NodeName: "n"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
		end := func(phase corev1.PodPhase, code int32, ago time.Duration) {
			p.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(now.Add(-ago))}},
			}}}
		}
		for _, mark := range strings.Split(marks, ",") {
			number := func(prefix string) (int, bool) {
				n, err := strconv.Atoi(strings.TrimPrefix(mark, prefix))
				return n, err == nil && strings.HasPrefix(mark, prefix)
			}
			if n, ok := number("#"); ok {
				p.Annotations[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(n)
				continue
			}
			if n, ok := number("before="); ok {
				p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(n)
				continue
			}
			if n, ok := number("restarts="); ok {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: int32(n)}}
				continue
			}
			if n, ok := number("exit="); ok {
				end(corev1.PodFailed, int32(n), time.Hour)
				continue
			}
			switch mark {
			case "":
			case "pending":
				p.Status, p.Spec.NodeName = corev1.PodStatus{Phase: corev1.PodPending}, ""
			case "succeeded":
				end(corev1.PodSucceeded, 0, time.Hour)
			case "failed":
				end(corev1.PodFailed, 1, time.Hour)
			case "just-failed":
				end(corev1.PodFailed, 1, time.Second)
			case "going":
				p.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
			case "free": // of the finalizer
				p.Finalizers = nil
			default:
				t.Fatalf("pod mark %q", mark)
			}
		}
		pods = append(pods, p)
	}
	return pods
}

// show writes a plan as "+2" or "+#1(2)" (pods created, by index, with failures
// before), "-a" (deleted), "~a" (removed), "^a" (given the finalizer), "!a" (loses
// it), "@1s" (looks again), then the status: succeeded/failed, uncounted ones,
// indexes, conditions that hold.
func show(p plan) string {
	var words []string
	plain := 0
	for _, c := range p.create {
		switch {
		case c.index < 0:
			plain++
		case c.failures > 0:
			words = append(words, fmt.Sprintf("+#%d(%d)", c.index, c.failures))
		default:
			words = append(words, fmt.Sprintf("+#%d", c.index))
		}
	}
	if plain > 0 {
		words = append(words, fmt.Sprintf("+%d", plain))
	}
	for _, l := range []struct {
		sign string
		pods []*corev1.Pod
	}{{"-", p.delete}, {"~", p.remove}, {"^", p.track}, {"!", p.strip}} {
		for _, pod := range l.pods {
			words = append(words, l.sign+pod.Name)
		}
	}
	if p.again > 0 {
		words = append(words, "@"+p.again.String())
	}
	s := &p.status
	words = append(words, fmt.Sprintf("%d/%d", s.Succeeded, s.Failed))
	for _, u := range s.UncountedTerminatedPods.Succeeded {
		words = append(words, "s:"+string(u))
	}
	for _, u := range s.UncountedTerminatedPods.Failed {
		words = append(words, "f:"+string(u))
	}
	if s.CompletedIndexes != "" {
		words = append(words, "done="+s.CompletedIndexes)
	}
	if s.FailedIndexes != nil && *s.FailedIndexes != "" {
		words = append(words, "gaveup="+*s.FailedIndexes)
	}
	for _, c := range s.Conditions {
		if c.Status == corev1.ConditionTrue {
			words = append(words, fmt.Sprintf("%s(%s)", c.Type, c.Reason))
		}
	}
	return strings.Join(words, " ")
}

func options(o ...option) []option { return o }

func TestDecide(t *testing.T) {
	const failJob, failIndex, ignore = batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionIgnore
	for _, c := range []struct {
		name    string
		options []option
		pods    string
		want    string
	}{
		{"first pods", options(size(2, 5)), "", "+2 0/0"},
		{"enough run", options(size(2, 5)), "a b", "0/0"},
		{"no more than are missing", options(size(4, 5), counted(3, 0)), "a", "+1 3/0"},
		{"one has succeeded", options(size(2, 5)), "a:succeeded b", "+1 !a 0/0 s:a"},
		{"noted, finalizer still there", options(size(2, 5), uncountedPods("a", "")), "a:succeeded b", "+1 !a 0/0 s:a"},
		{"noted, finalizer gone", options(size(2, 5), uncountedPods("a", "")), "a:succeeded,free b", "+1 1/0"},
		{"noted, pod gone", options(size(2, 5), uncountedPods("a", "c")), "b", "+1 1/1"},
		{"counted, pod still there", options(size(2, 5), counted(1, 0)), "a:succeeded,free b c", "1/0"},
		{"lower parallelism", options(size(1, 5)), "a b:pending", "~b 0/0"},
		{"removed ones count neither way", options(size(1, 5)), "a b:going,free", "0/0"},
		{"no finalizer: given one", options(size(1, 5)), "a:free", "^a 0/0"},

		{"complete", options(size(2, 2), counted(1, 0)), "b:succeeded", "!b 1/0 s:b SuccessCriteriaMet(CompletionsReached)"},
		{"complete, all counted", options(size(2, 2), counted(1, 0), uncountedPods("b", ""), condition(batchv1.JobSuccessCriteriaMet)), "b:succeeded,free", "2/0 SuccessCriteriaMet(Why) Complete(Why)"},
		{"complete, one still runs", options(size(2, 2), counted(2, 0), condition(batchv1.JobSuccessCriteriaMet)), "c", "-c 2/0 SuccessCriteriaMet(Why)"},
		{"complete, one is ending", options(size(2, 2), counted(2, 0), condition(batchv1.JobSuccessCriteriaMet)), "c:going", "!c 2/0 SuccessCriteriaMet(Why)"},
		{"nothing to do", options(size(1, 0)), "", "0/0 SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)"},
		{"queue: no new ones after a success", options(queue(3), counted(1, 0)), "a b", "1/0"},
		{"queue: all done", options(queue(3), counted(1, 0)), "a:succeeded", "!a 1/0 s:a SuccessCriteriaMet(CompletionsReached)"},
		{"queue: failed and none succeeded", options(queue(1)), "a:failed", "+1 !a 0/0 f:a"},

		{"one has failed", options(size(1, 1)), "a:failed", "+1 !a 0/0 f:a"},
		{"one has just failed", options(size(1, 1)), "a:just-failed", "!a @9s 0/0 f:a"},
		{"failed again, a minute ago counted", options(size(1, 1), counted(0, 2)), "a:failed,free b:failed,free c:just-failed,free", "@39s 0/2"},
		{"a success resets the wait", options(size(2, 5), counted(0, 1)), "a:failed,free b:succeeded", "+2 !b 0/1 s:b"},
		{"backoff limit", options(limit(1), counted(0, 1)), "a:failed", "!a 0/1 f:a FailureTarget(BackoffLimitExceeded)"},
		{"backoff limit, others run", options(size(2, 2), limit(0)), "a:failed b", "-b !a 0/0 f:a FailureTarget(BackoffLimitExceeded)"},
		{"backoff limit, others are ending", options(size(2, 2), counted(0, 1), condition(batchv1.JobFailureTarget)), "b:going", "!b 0/1 f:b FailureTarget(Why)"},
		{"backoff limit, all counted", options(size(2, 2), counted(0, 2), condition(batchv1.JobFailureTarget)), "a:failed,free", "0/2 FailureTarget(Why) Failed(Why)"},
		{"restarts in place", options(onFailure, limit(3)), "a:restarts=2", "0/0"},
		{"too many restarts in place", options(onFailure, limit(3)), "a:restarts=3", "-a 0/0 FailureTarget(BackoffLimitExceeded)"},
		{"no restart allowed", options(onFailure, limit(0)), "a:restarts=1", "-a 0/0 FailureTarget(BackoffLimitExceeded)"},
		{"deleted by somebody", options(size(1, 1)), "a:going", "+1 !a 0/0 f:a"},
		{"deleted, replaced when it has ended", options(size(1, 1), replaceFailed), "a:going", "0/0"},
		{"deleted before it was bound", options(size(1, 1), replaceFailed), "a:going,pending", "!a 0/0 f:a"},
		{"before the deadline", options(deadline(60), started(20*time.Second)), "a", "@40s 0/0"},
		{"deadline", options(deadline(60), started(time.Minute)), "a", "-a 0/0 FailureTarget(DeadlineExceeded)"},

		{"suspended", options(size(2, 2), suspend), "a b", "~a ~b 0/0 Suspended(JobSuspended)"},
		{"suspended past the deadline", options(suspend, wasSuspended, deadline(60), started(time.Hour)), "", "0/0 Suspended(JobSuspended)"},
		{"resumed past the deadline", options(wasSuspended, deadline(60), started(time.Hour)), "", "+1 @1m0s 0/0"},

		{"indexed: first", options(size(2, 4), byIndex), "", "+#0 +#1 0/0"},
		{"indexed: next", options(size(2, 4), byIndex), "a:#0,succeeded b:#1", "+#2 !a 1/0 done=0"},
		{"indexed: a failed one again", options(size(2, 4), byIndex, completed("1")), "a:#0,failed b:#2", "+#0 !a 1/0 f:a done=1"},
		{"indexed: twice the same", options(size(2, 4), byIndex), "a:#0 b:#0,pending", "~b +#1 0/0"},
		{"indexed: the same success twice", options(size(2, 4), byIndex, completed("0")), "a:#0,succeeded b:#1 c:#2", "!a 1/0 done=0"},
		{"indexed: shrunk", options(size(2, 2), byIndex, completed("0,3")), "a:#1 b:#3 c:#4,failed", "~b !c 1/0 done=0"},
		{"indexed: complete", options(size(2, 2), byIndex, completed("0")), "b:#1,succeeded", "!b 2/0 done=0,1 SuccessCriteriaMet(CompletionsReached)"},
		{"indexed: without an index", options(size(1, 2), byIndex), "a:succeeded b:#0", "!a 0/0"},

		{"per index: the failed one waits for its successor", options(size(2, 2), perIndex(2)), "a:#0,failed b:#1", "+#0(1) 0/0"},
		{"per index: with a successor", options(size(2, 2), perIndex(2)), "a:#0,failed a2:#0,before=1 b:#1", "!a 0/0 f:a"},
		{"per index: waits", options(size(2, 2), perIndex(2)), "a:#0,just-failed,before=1 b:#1", "@19s 0/0"},
		{"per index: others do not wait", options(size(2, 3), perIndex(2)), "a:#0,just-failed b:#1", "+#2 @9s 0/0"},
		{"per index: too often", options(size(2, 3), perIndex(1)), "a:#0,failed,before=1 b:#1", "+#2 !a 0/0 f:a gaveup=0"},
		{"per index: all done, one gave up", options(size(2, 2), perIndex(0)), "a:#0,failed b:#1,succeeded", "!b !a 1/0 f:a done=1 gaveup=0 FailureTarget(FailedIndexes)"},
		{"per index: too many gave up", options(size(3, 9), perIndex(0), maxFailed(1)), "a:#0,failed b:#1,failed c:#2", "-c !a !b 0/0 f:a f:b gaveup=0,1 FailureTarget(MaxFailedIndexesExceeded)"},
		{"per index: gave up earlier", options(size(2, 3), perIndex(0), failedIndexes("0"), counted(0, 1)), "b:#1", "+#2 0/1 gaveup=0"},

		{"policy: fails the job", options(size(2, 2), failurePolicy(failJob, 42)), "a:exit=42 b", "-b !a 0/0 f:a FailureTarget(PodFailurePolicy)"},
		{"policy: waits for the end", options(size(1, 1), failurePolicy(failJob, 42)), "a:going", "0/0"},
		{"policy: ignored", options(size(1, 1), limit(0), failurePolicy(ignore, 42)), "a:exit=42", "+1 !a 0/0"},
		{"policy: not ignored", options(size(1, 1), limit(0), failurePolicy(ignore, 42)), "a:exit=1", "!a 0/0 f:a FailureTarget(BackoffLimitExceeded)"},
		{"policy: fails the index", options(size(2, 3), perIndex(9), failurePolicy(failIndex, 42)), "a:#0,exit=42 b:#1", "+#2 !a 0/0 f:a gaveup=0"},
		{"policy: ignored, per index", options(size(2, 2), perIndex(0), failurePolicy(ignore, 42)), "a:#0,exit=42 b:#1", "+#0 0/0"},

		{"success policy", options(size(3, 3), byIndex, success(1)), "a:#0,succeeded b:#1 c:#2", "-b -c !a 1/0 done=0 SuccessCriteriaMet(SuccessPolicy)"},
		{"success policy: the rest does not count", options(size(3, 3), byIndex, success(1), completed("0"), condition(batchv1.JobSuccessCriteriaMet)), "b:#1,going c:#2,failed,going", "!b !c 1/0 done=0 SuccessCriteriaMet(Why)"},

		{"being deleted", options(size(2, 2), deleted, replaceFailed), "a b:going", "!b 0/0 f:b"},
	} {
		job := newJob(c.options...)
		s := state{job: job, pods: parsePods(t, c.pods), stripped: func(types.UID) bool { return false }, now: now}
		before := job.DeepCopy()
		p := s.decide()
		words := strings.Fields(c.want)
		// The order of what is done says nothing: actions are compared sorted.
		got := strings.Fields(show(p))
		slices.Sort(got)
		slices.Sort(words)
		if !slices.Equal(got, words) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, show(p), c.want)
		}
		if !equality.Semantic.DeepEqual(before, job) {
			t.Errorf("%s: the Job was changed", c.name)
		}
	}
}

func TestStrippedPodsAreNotCountedAgain(t *testing.T) {
	// The cache still shows the finalizer of a pod that is a number already.
	job := newJob(size(2, 5), counted(1, 0))
	s := state{job: job, pods: parsePods(t, "a:succeeded b c"), stripped: func(u types.UID) bool { return u == "a" }, now: now}
	if got := show(s.decide()); got != "1/0" {
		t.Error(got)
	}
}

func TestUncountedIsBounded(t *testing.T) {
	var text []string
	for i := range maxUncounted + 10 {
		text = append(text, fmt.Sprintf("p%d:succeeded", i))
	}
	s := state{job: newJob(size(10, 5000)), pods: parsePods(t, strings.Join(text, " ")), stripped: func(types.UID) bool { return false }, now: now}
	p := s.decide()
	if len(p.strip) != maxUncounted || len(p.status.UncountedTerminatedPods.Succeeded) != maxUncounted {
		t.Errorf("%d noted, %d lose the finalizer; want %d", len(p.status.UncountedTerminatedPods.Succeeded), len(p.strip), maxUncounted)
	}
}

func TestPodOfAnIndex(t *testing.T) {
	job := newJob(size(3, 3), perIndex(2))
	job.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "i"}}
	p := newPod(job, creation{index: 2, failures: 1})
	if p.GenerateName != "work-2-" || p.Spec.Hostname != "work-2" || indexOf(p) != 2 || failureCount(p) != 1 || !hasFinalizer(p) || p.Labels[batchv1.JobCompletionIndexAnnotation] != "2" {
		t.Errorf("pod %+v", p.ObjectMeta)
	}
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		if len(c.Env) != 1 || c.Env[0].Name != "JOB_COMPLETION_INDEX" {
			t.Errorf("container %s: environment %v", c.Name, c.Env)
		}
	}
}
