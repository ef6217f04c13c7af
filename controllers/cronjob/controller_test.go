package cronjob

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func start(t *testing.T, c *runtimetest.Cluster) {
	c.Run(t, map[string]runtime.Builder{"cronjob": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
}

func list(t *testing.T, c *runtimetest.Cluster) []batchv1.Job {
	t.Helper()
	l, err := c.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// touch makes the controller look at the CronJob.
func touch(t *testing.T, c *runtimetest.Cluster, f option) {
	t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cj, err := c.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(cj)
		_, err = c.BatchV1().CronJobs("default").Update(t.Context(), cj, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func waitActive(t *testing.T, c *runtimetest.Cluster, n int, f func(s batchv1.CronJobStatus) bool) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		cj, err := c.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
		if err != nil || len(cj.Status.Active) != n || !f(cj.Status) {
			return fmt.Sprintf("status %+v, want %d active; %v", cj.Status, n, err)
		}
		return ""
	})
}

func TestStartsOncePerTime(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	c := runtimetest.New(t, cronJob(every("* * * * *"), last("2025-12-31T12:00:00Z")))
	c.Clock = clock
	start(t, c)
	waitActive(t, c, 1, func(s batchv1.CronJobStatus) bool { return s.LastScheduleTime.Time.Equal(noon.Truncate(time.Minute)) })
	touch(t, c, func(cj *batchv1.CronJob) { cj.Annotations = map[string]string{"x": "y"} })
	c.Settle(t)
	if n := len(list(t, c)); n != 1 {
		t.Fatalf("%d jobs for one time", n)
	}
	job := list(t, c)[0]
	end := metav1.NewTime(noon.Add(time.Second))
	job.Status.CompletionTime = &end
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	if _, err := c.BatchV1().Jobs("default").UpdateStatus(t.Context(), &job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitActive(t, c, 0, func(s batchv1.CronJobStatus) bool { return s.LastSuccessfulTime != nil })
	clock.Step(time.Minute)
	touch(t, c, func(cj *batchv1.CronJob) { cj.Annotations = map[string]string{"x": "z"} })
	waitActive(t, c, 1, func(s batchv1.CronJobStatus) bool { return true })
	if n := len(list(t, c)); n != 2 {
		t.Errorf("%d jobs for two times", n)
	}
}

func TestStartedByAnEarlierLeader(t *testing.T) {
	cj := cronJob(last("2026-01-01T11:00:00Z"))
	there := newJob(cj, noon.Truncate(time.Minute), time.UTC)
	c := runtimetest.New(t, cj, there)
	c.Clock = clocktesting.NewFakeClock(noon)
	start(t, c)
	waitActive(t, c, 1, func(s batchv1.CronJobStatus) bool { return s.LastScheduleTime.Time.Equal(noon.Truncate(time.Minute)) })
	if n := len(list(t, c)); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

func TestSettledCronJobWritesNothing(t *testing.T) {
	c := runtimetest.New(t, cronJob(last("2026-01-01T12:00:00Z")))
	c.Clock = clocktesting.NewFakeClock(noon)
	start(t, c)
	touch(t, c, func(cj *batchv1.CronJob) { cj.Annotations = map[string]string{"x": "y"} })
	c.Settle(t)
	if w := c.Writes(); w != 1 {
		t.Errorf("%d writes without a need", w-1)
	}
}
