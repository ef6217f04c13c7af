package job

import (
	"context"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func start(t *testing.T, c *runtimetest.Cluster) {
	c.Run(t, map[string]runtime.Builder{"job": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
}

func pods(t *testing.T, c *runtimetest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func get(t *testing.T, c *runtimetest.Cluster) *batchv1.Job {
	t.Helper()
	job, err := c.BatchV1().Jobs("default").Get(t.Context(), "work", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// end ends one pod that runs.
func end(t *testing.T, c *runtimetest.Cluster, phase corev1.PodPhase) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		for _, p := range pods(t, c) {
			if p.Status.Phase == "" && p.DeletionTimestamp == nil {
				p.Status.Phase = phase
				_, err := c.CoreV1().Pods("default").UpdateStatus(t.Context(), &p, metav1.UpdateOptions{})
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, c *runtimetest.Cluster, what string, f func(s batchv1.JobStatus) bool) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		if s := get(t, c).Status; !f(s) {
			return fmt.Sprintf("not %s: %+v", what, s)
		}
		return ""
	})
}

func running(n int32) func(batchv1.JobStatus) bool {
	return func(s batchv1.JobStatus) bool { return s.Active == n }
}

func TestRunsUntilComplete(t *testing.T) {
	c := runtimetest.New(t, newJob(size(2, 4)))
	start(t, c)
	for i := range 4 {
		waitFor(t, c, "running", running(int32(min(2, 4-i))))
		end(t, c, corev1.PodSucceeded)
		waitFor(t, c, "counted", func(s batchv1.JobStatus) bool { return int(s.Succeeded) == i+1 })
	}
	waitFor(t, c, "complete", func(s batchv1.JobStatus) bool {
		return holds(&s, batchv1.JobComplete) && s.Succeeded == 4 && s.Failed == 0 && s.Active == 0 && s.CompletionTime != nil && s.StartTime != nil && len(s.UncountedTerminatedPods.Succeeded) == 0
	})
	all := pods(t, c)
	for _, p := range all {
		if hasFinalizer(&p) {
			t.Errorf("pod %s keeps its finalizer", p.Name)
		}
	}
	if len(all) != 4 {
		t.Errorf("%d pods", len(all))
	}
}

func TestFailsAndTakesTheOthersAlong(t *testing.T) {
	c := runtimetest.New(t, newJob(size(3, 3), limit(0)))
	start(t, c)
	waitFor(t, c, "running", running(3))
	end(t, c, corev1.PodFailed)
	waitFor(t, c, "failed", func(s batchv1.JobStatus) bool {
		f := find(&s, batchv1.JobFailed)
		return f != nil && f.Reason == batchv1.JobReasonBackoffLimitExceeded && holds(&s, batchv1.JobFailureTarget) && s.Active == 0
	})
	if n := len(pods(t, c)); n != 1 {
		t.Errorf("%d pods are left, want the failed one", n)
	}
}

func TestSuspendAndResume(t *testing.T) {
	c := runtimetest.New(t, newJob(size(2, 2)))
	start(t, c)
	edit := func(to bool) {
		t.Helper()
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			job := get(t, c)
			job.Spec.Suspend = &to
			_, err := c.BatchV1().Jobs("default").Update(t.Context(), job, metav1.UpdateOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, c, "running", running(2))
	edit(true)
	waitFor(t, c, "suspended", func(s batchv1.JobStatus) bool { return s.Active == 0 && holds(&s, batchv1.JobSuspended) })
	edit(false)
	waitFor(t, c, "resumed", func(s batchv1.JobStatus) bool {
		return s.Active == 2 && !holds(&s, batchv1.JobSuspended) && s.Failed == 0
	})
}

// TestCountedOnceOverALeaderChange: an earlier leader has counted a pod, and the
// caches of the new one show it as it was before.
func TestCountedOnceOverALeaderChange(t *testing.T) {
	stale := parsePods(t, "a:succeeded b")
	fresh := parsePods(t, "a:succeeded,free b")
	job := newJob(size(2, 5), counted(1, 0))
	c := runtimetest.New(t, job, fresh[0], fresh[1])
	ctl := &controller{client: c.Clientset, stripped: newStrippedPods(), clock: c.Clock, started: c.Clock.Now()}
	s := state{job: job, pods: stale, stripped: ctl.stripped.has, now: c.Clock.Now()}
	if err := ctl.verify(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	if got := s.decide().status; got.Succeeded != 1 || len(got.UncountedTerminatedPods.Succeeded) != 0 {
		t.Errorf("counted again: %+v", got)
	}
	// Later the cache is what counts.
	s.now = s.now.Add(2 * settling)
	before := len(c.Actions())
	if err := ctl.verify(context.Background(), s); err != nil || len(c.Actions()) != before {
		t.Errorf("reads pods for ever: %v", err)
	}
}

// TestEveryPodCountsOnce ends pods while the controller is started again and again.
func TestEveryPodCountsOnce(t *testing.T) {
	c := runtimetest.New(t, newJob(size(5, 12)))
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			c.Informers = c.NewInformers()
			start(t, c)
			for range 6 {
				runtimetest.Eventually(t, func() string {
					for _, p := range pods(t, c) {
						if p.Status.Phase == "" {
							return ""
						}
					}
					return "no pod runs"
				})
				end(t, c, corev1.PodSucceeded)
			}
		})
	}
	c.Informers = c.NewInformers()
	start(t, c)
	waitFor(t, c, "complete", func(s batchv1.JobStatus) bool { return holds(&s, batchv1.JobComplete) && s.Succeeded == 12 })
	ended := map[types.UID]bool{}
	for _, p := range pods(t, c) {
		ended[p.UID] = true
	}
	if len(ended) != 12 {
		t.Errorf("%d pods for 12 completions", len(ended))
	}
}

func TestPodsOfADeletedJobAreLetGo(t *testing.T) {
	c := runtimetest.New(t, newJob(size(1, 1)))
	start(t, c)
	waitFor(t, c, "running", running(1))
	if err := c.BatchV1().Jobs("default").Delete(t.Context(), "work", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		for _, p := range pods(t, c) {
			if hasFinalizer(&p) {
				return "a pod keeps its finalizer"
			}
		}
		return ""
	})
}

func TestJobsOfOthersAreLeftAlone(t *testing.T) {
	other := "example.com/other"
	c := runtimetest.New(t, newJob(func(j *batchv1.Job) { j.Spec.ManagedBy = &other }))
	start(t, c)
	c.Settle(t)
	if w := c.Writes(); w != 0 {
		t.Errorf("%d writes", w)
	}
}

func TestSettledJobWritesNothing(t *testing.T) {
	c := runtimetest.New(t, newJob(size(2, 4)))
	start(t, c)
	waitFor(t, c, "running", running(2))
	c.Settle(t)
	before := c.Writes()
	p := pods(t, c)[0]
	p.Annotations = map[string]string{"x": "y"} // reconciles
	if _, err := c.CoreV1().Pods("default").Update(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	c.Settle(t) // longer than changes of pods are gathered
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}
