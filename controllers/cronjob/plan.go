package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slack is added to waits, so that the time has come when one ends.
const slack = 100 * time.Millisecond

// state is what is seen of a CronJob.
type state struct {
	cj   *batchv1.CronJob
	jobs []*batchv1.Job // all that it controls
	// unseen are active Jobs that the cache does not show and the API server does.
	unseen []corev1.ObjectReference
	now    time.Time
}

// event is one for the CronJob.
type event struct{ kind, reason, message string }

// plan is what a CronJob needs.
type plan struct {
	status batchv1.CronJobStatus
	// start is the scheduled time to start a Job for, zero for none; it is not in
	// status yet.
	start time.Time
	zone  *time.Location
	// replace are Jobs that must make room first, prune old ones.
	replace, prune []*batchv1.Job
	events         []event
	// again is when to look again, 0 for never.
	again time.Duration
}

func (p *plan) warn(reason, format string, args ...any) {
	p.events = append(p.events, event{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)})
}

func (p *plan) tell(reason, format string, args ...any) {
	p.events = append(p.events, event{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)})
}

// ended returns the condition that ended the Job, or nil.
func ended(job *batchv1.Job) *batchv1.JobCondition {
	for i, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

func reference(job *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: kindOfJobs.GroupVersion().String(), Kind: kindOfJobs.Kind,
		Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion,
	}
}

// decide returns what to do.
func (s state) decide() plan {
	p := plan{status: *s.cj.Status.DeepCopy()}
	s.observe(&p)
	if s.cj.DeletionTimestamp != nil {
		return p
	}
	p.prune = s.surplus()
	if s.cj.Spec.Suspend != nil && *s.cj.Spec.Suspend {
		return p
	}
	schedule, zone, err := parse(s.cj)
	if err != nil {
		reason := "UnparseableSchedule"
		if strings.HasPrefix(err.Error(), "unknown timeZone") {
			reason = "UnknownTimeZone"
		}
		p.warn(reason, "%v", err)
		return p // an edit brings it back
	}
	p.zone = zone
	if next := schedule.Next(s.now); !next.IsZero() {
		p.again = next.Sub(s.now) + slack
	}
	from := s.cj.CreationTimestamp.Time
	if t := s.cj.Status.LastScheduleTime; t != nil {
		from = t.Time
	}
	at, missed := latest(schedule, from, s.now)
	if at.IsZero() {
		return p
	}
	if d := s.cj.Spec.StartingDeadlineSeconds; d != nil {
		earliest := s.now.Add(-time.Duration(*d) * time.Second)
		if at.Before(earliest) {
			p.warn("MissSchedule", "Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
			return p
		}
		if earliest.After(from) {
			_, missed = latest(schedule, earliest, s.now)
		}
	}
	if missed > manyMissed {
		p.warn("TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	if slices.ContainsFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.Name == jobName(s.cj, at) }) {
		p.status.LastScheduleTime = &metav1.Time{Time: at} // it was started and the note of it lost
		return p
	}
	switch s.cj.Spec.ConcurrencyPolicy {
	case batchv1.ForbidConcurrent:
		if len(p.status.Active) > 0 {
			p.tell("JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
			return p
		}
	case batchv1.ReplaceConcurrent:
		for _, job := range s.jobs {
			if ended(job) == nil && job.DeletionTimestamp == nil {
				p.replace = append(p.replace, job)
			}
		}
	}
	p.start = at
	return p
}

// observe brings the status to what the Jobs say.
func (s state) observe(p *plan) {
	was := map[string]bool{}
	for _, r := range s.cj.Status.Active {
		was[string(r.UID)] = true
	}
	var active []corev1.ObjectReference
	sorted := slices.Clone(s.jobs)
	slices.SortFunc(sorted, byAge)
	for _, job := range sorted {
		end := ended(job)
		switch {
		case end == nil:
			r := reference(job)
			// The version says when it was seen first; it is no reason for a write.
			if i := slices.IndexFunc(s.cj.Status.Active, func(o corev1.ObjectReference) bool { return o.UID == r.UID }); i >= 0 {
				r = s.cj.Status.Active[i]
			}
			active = append(active, r)
			continue
		case was[string(job.UID)]:
			p.tell("SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, end.Type)
		}
		if t := job.Status.CompletionTime; end.Type == batchv1.JobComplete && t != nil {
			if p.status.LastSuccessfulTime == nil || t.After(p.status.LastSuccessfulTime.Time) {
				p.status.LastSuccessfulTime = t
			}
		}
	}
	p.status.Active = append(active, s.unseen...)
}

func byAge(a, b *batchv1.Job) int {
	return cmp.Or(started(a).Compare(started(b)), cmp.Compare(a.Name, b.Name))
}

func started(job *batchv1.Job) time.Time {
	if job.Status.StartTime != nil {
		return job.Status.StartTime.Time
	}
	return job.CreationTimestamp.Time
}

// surplus returns the oldest ended Jobs beyond the history limits.
func (s state) surplus() []*batchv1.Job {
	var out []*batchv1.Job
	for kind, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: s.cj.Spec.SuccessfulJobsHistoryLimit,
		batchv1.JobFailed:   s.cj.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		var of []*batchv1.Job
		for _, job := range s.jobs {
			if c := ended(job); c != nil && c.Type == kind && job.DeletionTimestamp == nil {
				of = append(of, job)
			}
		}
		slices.SortFunc(of, byAge)
		out = append(out, of[:max(0, len(of)-int(*limit))]...)
	}
	slices.SortFunc(out, byAge)
	return out
}

// jobName is the name of the Job of a scheduled time.
func jobName(cj *batchv1.CronJob, at time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, at.Unix()/60)
}

// newJob makes the Job of a scheduled time.
func newJob(cj *batchv1.CronJob, at time.Time, zone *time.Location) *batchv1.Job {
	annotations := maps.Clone(cj.Spec.JobTemplate.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: jobName(cj, at), Namespace: cj.Namespace,
			Labels: maps.Clone(cj.Spec.JobTemplate.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, kind)},
		},
		Spec: *cj.Spec.JobTemplate.Spec.DeepCopy(),
	}
}
