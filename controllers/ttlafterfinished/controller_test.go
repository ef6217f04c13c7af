package ttlafterfinished

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func job(name string, ttl int32, t batchv1.JobConditionType, ended time.Time) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	if ttl >= 0 {
		j.Spec.TTLSecondsAfterFinished = &ttl
	}
	if t != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(ended)}}
	}
	return j
}

func TestEndedJobsGoInTime(t *testing.T) {
	now := time.Now()
	c := runtimetest.New(t,
		job("complete", 60, batchv1.JobComplete, now.Add(-time.Hour)),
		job("failed", 0, batchv1.JobFailed, now),
		job("not-yet", 60, batchv1.JobComplete, now.Add(-time.Second)),
		job("kept", -1, batchv1.JobComplete, now.Add(-time.Hour)),
		job("runs", 0, "", now),
		job("about-to", 0, batchv1.JobSuccessCriteriaMet, now),
	)
	c.Clock = clocktesting.NewFakeClock(now)
	c.Run(t, map[string]runtime.Builder{"ttlafterfinished": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	c.Settle(t)
	l, err := c.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, j := range l.Items {
		left[j.Name] = true
	}
	if len(left) != 4 || !left["not-yet"] || !left["kept"] || !left["runs"] || !left["about-to"] {
		t.Errorf("left: %v", left)
	}
	if w := c.Writes(); w != 2 {
		t.Errorf("%d writes, want the two deletions", w)
	}
}

func TestProlongedTimeCounts(t *testing.T) {
	now := time.Now()
	fresh := job("a", 60, batchv1.JobComplete, now.Add(-30*time.Second))
	stale := fresh.DeepCopy()
	*stale.Spec.TTLSecondsAfterFinished = 10
	c := runtimetest.New(t, fresh)
	jobs := c.Informers.Batch().V1().Jobs()
	if err := jobs.Informer().GetStore().Add(stale); err != nil {
		t.Fatal(err)
	}
	ctl := &controller{client: c.Clientset, jobs: jobs.Lister(), clock: clocktesting.NewFakeClock(now)}
	if wait, err := ctl.reconcile(t.Context(), "default/a"); err != nil || wait != 30*time.Second {
		t.Errorf("waits for %s, %v", wait, err)
	}
	if w := c.Writes(); w != 0 {
		t.Errorf("%d writes", w)
	}
}
