package cronjob

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noon is what the clock shows.
var noon = at("2026-01-01T12:00:30Z")

type option = func(*batchv1.CronJob)

func cronJob(options ...option) *batchv1.CronJob {
	cj := newCron("0 * * * *")
	cj.ObjectMeta = metav1.ObjectMeta{Name: "tick", Namespace: "default", UID: "tick", CreationTimestamp: metav1.NewTime(at("2026-01-01T00:10:00Z"))}
	cj.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	for _, o := range options {
		o(cj)
	}
	return cj
}

func last(s string) option {
	return func(cj *batchv1.CronJob) { cj.Status.LastScheduleTime = &metav1.Time{Time: at(s)} }
}
func deadline(n int64) option {
	return func(cj *batchv1.CronJob) { cj.Spec.StartingDeadlineSeconds = &n }
}
func concurrency(p batchv1.ConcurrencyPolicy) option {
	return func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = p }
}
func every(s string) option       { return func(cj *batchv1.CronJob) { cj.Spec.Schedule = s } }
func suspend(cj *batchv1.CronJob) { yes := true; cj.Spec.Suspend = &yes }
func keep(succeeded, failed int32) option {
	return func(cj *batchv1.CronJob) {
		cj.Spec.SuccessfulJobsHistoryLimit, cj.Spec.FailedJobsHistoryLimit = &succeeded, &failed
	}
}
func active(names string) option {
	return func(cj *batchv1.CronJob) {
		for _, n := range strings.Fields(names) {
			cj.Status.Active = append(cj.Status.Active, corev1.ObjectReference{Name: n, UID: types.UID(n)})
		}
	}
}

// jobs reads Jobs such as "a b:complete c:failed", the oldest first.
func jobs(text string) []*batchv1.Job {
	var out []*batchv1.Job
	for i, word := range strings.Fields(text) {
		name, mark, _ := strings.Cut(word, ":")
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
		begin := metav1.NewTime(noon.Add(time.Duration(i-100) * time.Minute))
		job.Status.StartTime = &begin
		end := metav1.NewTime(begin.Add(time.Second))
		switch mark {
		case "complete":
			job.Status.CompletionTime = &end
			job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		case "failed":
			job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		}
		out = append(out, job)
	}
	return out
}

func show(p plan) string {
	var words []string
	if !p.start.IsZero() {
		words = append(words, "start="+p.start.UTC().Format("02-15:04"))
	}
	for _, j := range p.replace {
		words = append(words, "replace="+j.Name)
	}
	for _, j := range p.prune {
		words = append(words, "prune="+j.Name)
	}
	for _, r := range p.status.Active {
		words = append(words, "active="+r.Name)
	}
	for _, e := range p.events {
		words = append(words, e.reason)
	}
	return strings.Join(words, " ")
}

func TestDecide(t *testing.T) {
	twelve := "tick-" + fmt.Sprint(at("2026-01-01T12:00:00Z").Unix()/60)
	for _, c := range []struct {
		name    string
		options []option
		jobs    string
		want    string
	}{
		{"due", []option{last("2026-01-01T11:00:00Z")}, "", "start=01-12:00"},
		{"started", []option{last("2026-01-01T12:00:00Z")}, "", ""},
		{"never started: since its creation", nil, "", "start=01-12:00"},
		{"the controller was off for a day", []option{every("* * * * *"), last("2025-12-31T12:00:00Z")}, "", "start=01-12:00 TooManyMissedTimes"},
		{"off for a day, the deadline bounds what counts as missed", []option{every("* * * * *"), last("2025-12-31T12:00:00Z"), deadline(600)}, "", "start=01-12:00"},
		{"within the deadline", []option{deadline(60), last("2026-01-01T11:00:00Z")}, "", "start=01-12:00"},
		{"past the deadline", []option{deadline(20), last("2026-01-01T11:00:00Z")}, "", "MissSchedule"},
		{"suspended", []option{suspend, last("2026-01-01T11:00:00Z")}, "", ""},
		{"suspended, yet pruned", []option{suspend, keep(0, 0)}, "a:complete", "prune=a"},
		{"unparseable", []option{every("nonsense")}, "", "UnparseableSchedule"},

		{"allow", []option{last("2026-01-01T11:00:00Z")}, "a", "start=01-12:00 active=a"},
		{"forbid", []option{concurrency(batchv1.ForbidConcurrent), last("2026-01-01T11:00:00Z")}, "a", "active=a JobAlreadyActive"},
		{"forbid, the other has ended", []option{concurrency(batchv1.ForbidConcurrent), last("2026-01-01T11:00:00Z"), active("a")}, "a:complete", "start=01-12:00 SawCompletedJob"},
		{"replace", []option{concurrency(batchv1.ReplaceConcurrent), last("2026-01-01T11:00:00Z")}, "a b:failed", "start=01-12:00 replace=a active=a"},
		{"started, the note of it was lost", []option{last("2026-01-01T11:00:00Z")}, twelve, "active=" + twelve},

		{"history", []option{last("2026-01-01T12:00:00Z"), keep(1, 2)}, "a:complete b:failed c:complete d:failed e:failed f", "prune=a prune=b active=f"},
		{"no limits", []option{last("2026-01-01T12:00:00Z")}, "a:complete b:failed", ""},
	} {
		cj := cronJob(c.options...)
		p := state{cj: cj, jobs: jobs(c.jobs), now: noon}.decide()
		if got := show(p); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if want := 59*time.Minute + 30*time.Second + slack; p.zone != nil && cj.Spec.Schedule == "0 * * * *" && p.again != want {
			t.Errorf("%s: looks again after %s, want %s", c.name, p.again, want)
		}
	}
}

func TestLastSuccess(t *testing.T) {
	all := jobs("a:complete b:complete c:failed")
	p := state{cj: cronJob(last("2026-01-01T12:00:00Z")), jobs: all, now: noon}.decide()
	if p.status.LastSuccessfulTime == nil || !p.status.LastSuccessfulTime.Equal(all[1].Status.CompletionTime) {
		t.Errorf("last success %v, want %v", p.status.LastSuccessfulTime, all[1].Status.CompletionTime)
	}
}

func TestJobTellsItsTime(t *testing.T) {
	cj := cronJob()
	cj.Spec.JobTemplate.Labels = map[string]string{"a": "b"}
	vienna, err := time.LoadLocation("Europe/Vienna")
	if err != nil {
		t.Fatal(err)
	}
	job := newJob(cj, at("2026-01-01T12:00:00Z"), vienna)
	if job.Name != "tick-29454480" || job.Labels["a"] != "b" || job.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "2026-01-01T13:00:00+01:00" || !metav1.IsControlledBy(job, cj) {
		t.Errorf("%+v", job.ObjectMeta)
	}
}
