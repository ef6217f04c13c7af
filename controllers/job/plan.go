package job

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// Bounds of one reconcile; upstream's values.
const (
	burst        = 500
	maxUncounted = 500
)

// How long the successor of a failed pod waits; doubled with each failure.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 10 * time.Minute
)

// state is what is seen of a Job.
type state struct {
	job  *batchv1.Job
	pods []*corev1.Pod
	// stripped tells of pods whose finalizer is gone although the cache shows it.
	stripped func(types.UID) bool
	now      time.Time
}

// plan is what a Job needs, in this order.
type plan struct {
	create []creation
	remove []*corev1.Pod // delete without counting: first without the finalizer
	delete []*corev1.Pod // delete and count
	track  []*corev1.Pod // give the finalizer
	status batchv1.JobStatus
	strip  []*corev1.Pod // take the finalizer, once the status is written
	// again is when to look again without an event, 0 for never.
	again time.Duration
}

// tally is what the pods amount to.
type tally struct {
	active                        []*corev1.Pod
	ready, terminating            int
	succeeded, failed             int
	completed, failedIndexes      indexes
	failJob                       string // why the pod failure policy fails the Job
	tracked                       int    // pods with the finalizer that stay so for now
	attempts                      map[int]attempt
	activeIndexes, leavingIndexes map[int]bool
}

// attempt is the last failed pod of an index.
type attempt struct {
	pod               *corev1.Pod
	failures, ignored int // including this one's
}

func (s state) completions() int {
	if s.job.Spec.Completions == nil {
		return 0
	}
	return int(*s.job.Spec.Completions)
}

func (s state) parallelism() int {
	if s.job.Spec.Parallelism == nil {
		return 1
	}
	return int(*s.job.Spec.Parallelism)
}

func (s state) suspended() bool { return s.job.Spec.Suspend != nil && *s.job.Spec.Suspend }

func (s state) tracked(p *corev1.Pod) bool { return hasFinalizer(p) && !s.stripped(p.UID) }

func (p *plan) wait(d time.Duration) {
	if d > 0 && (p.again == 0 || d < p.again) {
		p.again = d
	}
}

// decide returns what to do. The Job is one that has not finished.
func (s state) decide() plan {
	p := plan{status: *s.job.Status.DeepCopy()}
	st := &p.status
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if st.StartTime == nil && !s.suspended() {
		st.StartTime = &metav1.Time{Time: s.now}
	}
	s.settle(st)
	outcome := interim(st)
	t := s.count(&p, outcome)
	if outcome == nil && s.job.DeletionTimestamp == nil {
		if outcome = s.judge(&p, t); outcome != nil {
			set(st, outcome.Type, corev1.ConditionTrue, outcome.Reason, outcome.Message, s.now)
		}
	}
	switch {
	case s.job.DeletionTimestamp != nil:
	case outcome != nil:
		p.delete = t.active
		if len(t.active) == 0 && t.terminating == 0 && t.tracked == 0 && len(p.strip) == 0 && !uncounted(st) {
			finish(st, outcome, s.now)
		}
	default:
		s.manage(&p, t)
	}
	ready, going := int32(t.ready), int32(t.terminating)
	st.Active, st.Ready, st.Terminating = int32(len(t.active)), &ready, &going
	return p
}

func uncounted(st *batchv1.JobStatus) bool {
	u := st.UncountedTerminatedPods // nil before the first status is written
	return u != nil && len(u.Succeeded)+len(u.Failed) > 0
}

// settle turns UIDs of pods without the finalizer into numbers.
func (s state) settle(st *batchv1.JobStatus) {
	tracked := map[types.UID]bool{}
	for _, p := range s.pods {
		if s.tracked(p) {
			tracked[p.UID] = true
		}
	}
	move := func(uids []types.UID, to *int32) []types.UID {
		return slices.DeleteFunc(uids, func(u types.UID) bool {
			if !tracked[u] {
				*to++
			}
			return !tracked[u]
		})
	}
	u := st.UncountedTerminatedPods
	u.Succeeded = move(u.Succeeded, &st.Succeeded)
	u.Failed = move(u.Failed, &st.Failed)
}

// count sorts the pods, notes in the status those that have ended, and picks
// those that may lose the finalizer. outcome is that of a Job about to end.
func (s state) count(p *plan, outcome *batchv1.JobCondition) tally {
	st, n := &p.status, s.completions()
	perIndex := indexed(s.job) && s.job.Spec.BackoffLimitPerIndex != nil
	t := tally{attempts: map[int]attempt{}, activeIndexes: map[int]bool{}, leavingIndexes: map[int]bool{}}
	if indexed(s.job) {
		t.completed = parseIndexes(st.CompletedIndexes, n)
		if st.FailedIndexes != nil {
			t.failedIndexes = parseIndexes(*st.FailedIndexes, n)
		}
	}
	var failures []*corev1.Pod
	var completed []int
	for _, pod := range s.pods {
		i := indexOf(pod)
		switch {
		case podstate.Active(pod):
			t.active = append(t.active, pod)
			t.activeIndexes[i] = true
			if podstate.Ready(pod) {
				t.ready++
			}
			if s.tracked(pod) {
				t.tracked++
			} else if !s.stripped(pod.UID) && outcome == nil && s.job.DeletionTimestamp == nil {
				p.track = append(p.track, pod)
			}
			continue
		case terminating(pod):
			t.terminating++
			t.leavingIndexes[i] = true
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && s.tracked(pod):
			switch {
			case !indexed(s.job):
				if !s.note(p, &st.UncountedTerminatedPods.Succeeded, pod) {
					t.tracked++
				}
			case i >= 0 && i < n && !t.failedIndexes.has(i):
				completed = append(completed, i)
				fallthrough
			default:
				p.strip = append(p.strip, pod)
			}
		case failed(s.job, pod):
			failures = append(failures, pod)
		case s.tracked(pod):
			t.tracked++
		}
	}
	t.completed = t.completed.with(completed...)
	slices.SortFunc(failures, func(a, b *corev1.Pod) int {
		return cmp.Or(finishTime(a).Compare(finishTime(b)), cmp.Compare(a.UID, b.UID))
	})

	// Indexes first: whether an index is done with decides about its last pod.
	var gaveUp []int
	for _, pod := range failures {
		v, i := judge(s.job, pod), indexOf(pod)
		if s.tracked(pod) && v.action == batchv1.PodFailurePolicyActionFailJob && t.failJob == "" {
			t.failJob = v.message
		}
		if !perIndex || i < 0 || i >= n || t.completed.has(i) {
			continue
		}
		a := attempt{pod: pod, failures: failureCount(pod), ignored: ignoredCount(pod)}
		if v.action == batchv1.PodFailurePolicyActionIgnore {
			a.ignored++
		} else {
			a.failures++
		}
		if last, ok := t.attempts[i]; !ok || a.failures+a.ignored >= last.failures+last.ignored {
			t.attempts[i] = a
		}
		if v.action == batchv1.PodFailurePolicyActionFailIndex || a.failures > int(*s.job.Spec.BackoffLimitPerIndex) {
			gaveUp = append(gaveUp, i)
		}
	}
	t.failedIndexes = t.failedIndexes.with(gaveUp...)
	kept := 0
	for _, pod := range failures {
		if !s.tracked(pod) {
			continue
		}
		i := indexOf(pod)
		switch {
		case outcome != nil && outcome.Type == batchv1.JobSuccessCriteriaMet && pod.DeletionTimestamp != nil,
			indexed(s.job) && (i < 0 || i >= n),
			judge(s.job, pod).action == batchv1.PodFailurePolicyActionIgnore && !s.last(t, perIndex, outcome, pod):
			p.strip = append(p.strip, pod) // counts for nothing
		case s.last(t, perIndex, outcome, pod):
			// It holds the index's count until a successor does.
			if judge(s.job, pod).action != batchv1.PodFailurePolicyActionIgnore {
				kept++
			}
			t.tracked++
		default:
			if !s.note(p, &st.UncountedTerminatedPods.Failed, pod) {
				kept++
				t.tracked++
			}
		}
	}
	u := st.UncountedTerminatedPods
	if indexed(s.job) {
		st.CompletedIndexes = t.completed.String()
		st.Succeeded = int32(t.completed.len())
		if perIndex {
			f := t.failedIndexes.String()
			st.FailedIndexes = &f
		}
		t.succeeded = t.completed.len()
	} else {
		t.succeeded = int(st.Succeeded) + len(u.Succeeded)
	}
	t.failed = int(st.Failed) + len(u.Failed) + kept
	return t
}

// last reports whether a failed pod is the last one of an index that goes on.
func (s state) last(t tally, perIndex bool, outcome *batchv1.JobCondition, pod *corev1.Pod) bool {
	i := indexOf(pod)
	return perIndex && outcome == nil && s.job.DeletionTimestamp == nil && t.attempts[i].pod == pod &&
		!t.completed.has(i) && !t.failedIndexes.has(i) && !t.activeIndexes[i]
}

// note puts a pod's UID into the list and marks the pod for the loss of its
// finalizer. It returns false when the lists are full.
func (s state) note(p *plan, list *[]types.UID, pod *corev1.Pod) bool {
	u := p.status.UncountedTerminatedPods
	if !slices.Contains(*list, pod.UID) {
		if len(u.Succeeded)+len(u.Failed) >= maxUncounted {
			return false
		}
		*list = append(*list, pod.UID)
	}
	p.strip = append(p.strip, pod)
	return true
}

// judge returns how the Job is to end, or nil when it goes on.
func (s state) judge(p *plan, t tally) *batchv1.JobCondition {
	failure := func(reason, message string) *batchv1.JobCondition {
		return &batchv1.JobCondition{Type: batchv1.JobFailureTarget, Reason: reason, Message: message}
	}
	success := func(reason, message string) *batchv1.JobCondition {
		return &batchv1.JobCondition{Type: batchv1.JobSuccessCriteriaMet, Reason: reason, Message: message}
	}
	spec := &s.job.Spec
	if t.failJob != "" {
		return failure(batchv1.JobReasonPodFailurePolicy, t.failJob)
	}
	if spec.BackoffLimit != nil && (t.failed > int(*spec.BackoffLimit) || s.restarts(t) > max(0, int(*spec.BackoffLimit)-1)) {
		return failure(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if spec.ActiveDeadlineSeconds != nil && !s.suspended() && p.status.StartTime != nil && !s.resuming() {
		left := p.status.StartTime.Add(time.Duration(*spec.ActiveDeadlineSeconds) * time.Second).Sub(s.now)
		if left <= 0 {
			return failure(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
		p.wait(left)
	}
	if i := succeeds(s.job, t.completed); i >= 0 {
		return success(batchv1.JobReasonSuccessPolicy, fmt.Sprintf("Matched rules at index %d", i))
	}
	if gone := t.failedIndexes.len(); gone > 0 {
		if spec.MaxFailedIndexes != nil && gone > int(*spec.MaxFailedIndexes) {
			return failure(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
		}
		if gone+t.completed.len() >= s.completions() {
			return failure(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if spec.Completions == nil && t.succeeded > 0 && len(t.active) == 0 && t.terminating == 0 ||
		spec.Completions != nil && t.succeeded >= s.completions() {
		return success(batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
	}
	return nil
}

// restarts sums up the restarts of containers when those are the Job's retries.
func (s state) restarts(t tally) int {
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return 0
	}
	n := 0
	for _, pod := range t.active {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			n += int(c.RestartCount)
		}
	}
	return n
}

// resuming reports whether the Job has been told to go on and its status does
// not say so yet.
func (s state) resuming() bool {
	c := find(&s.job.Status, batchv1.JobSuspended)
	return !s.suspended() && c != nil && c.Status == corev1.ConditionTrue
}

// manage brings the number of running pods to what is wanted.
func (s state) manage(p *plan, t tally) {
	st := &p.status
	if s.suspended() {
		p.remove = t.active
		set(st, batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended", s.now)
		return
	}
	if s.resuming() {
		set(st, batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", s.now)
		// The deadline does not count the time of the suspension.
		st.StartTime = &metav1.Time{Time: s.now}
		if d := s.job.Spec.ActiveDeadlineSeconds; d != nil {
			p.wait(time.Duration(*d) * time.Second)
		}
	}
	want := s.parallelism()
	if s.job.Spec.Completions != nil {
		want = max(0, min(want, s.completions()-t.succeeded-t.failedIndexes.len()))
	} else if t.succeeded > 0 {
		want = len(t.active) // the work is done: no new ones
	}
	active := s.useful(t, p)
	if excess := len(active) - want; excess > 0 {
		slices.SortStableFunc(active, func(a, b *corev1.Pod) int { return cmp.Compare(worth(a), worth(b)) })
		p.remove = append(p.remove, active[:excess]...)
		return
	}
	need := want - len(active)
	if onlyReplaceFailed(s.job) {
		need -= t.terminating
	}
	need = min(need, burst)
	if need <= 0 {
		return
	}
	if indexed(s.job) && s.job.Spec.BackoffLimitPerIndex != nil {
		s.createIndexes(p, t, need)
		return
	}
	if wait := s.backoff(); wait > 0 {
		p.wait(wait)
		return
	}
	if indexed(s.job) {
		s.createIndexes(p, t, need)
		return
	}
	for range need {
		p.create = append(p.create, creation{index: -1})
	}
}

// useful returns the active pods but those that no index needs, which are to be
// removed: of an index that is done with or that another pod has.
func (s state) useful(t tally, p *plan) []*corev1.Pod {
	active := slices.Clone(t.active)
	if !indexed(s.job) {
		return active
	}
	slices.SortStableFunc(active, func(a, b *corev1.Pod) int { return -cmp.Compare(worth(a), worth(b)) })
	seen := map[int]bool{}
	return slices.DeleteFunc(active, func(pod *corev1.Pod) bool {
		i := indexOf(pod)
		if i >= 0 && i < s.completions() && !seen[i] && !t.completed.has(i) && !t.failedIndexes.has(i) {
			seen[i] = true
			return false
		}
		p.remove = append(p.remove, pod)
		return true
	})
}

// worth orders pods by how far they have come.
func worth(p *corev1.Pod) int {
	switch {
	case p.Spec.NodeName == "":
		return 0
	case p.Status.Phase != corev1.PodRunning:
		return 1
	case !podstate.Ready(p):
		return 2
	}
	return 3
}

// createIndexes picks the lowest indexes that lack a pod.
func (s state) createIndexes(p *plan, t tally, need int) {
	for i := 0; i < s.completions() && len(p.create) < need; i++ {
		if t.completed.has(i) || t.failedIndexes.has(i) || t.activeIndexes[i] || onlyReplaceFailed(s.job) && t.leavingIndexes[i] {
			continue
		}
		a := t.attempts[i]
		if a.pod != nil {
			if wait := finishTime(a.pod).Add(delay(a.failures + a.ignored)).Sub(s.now); wait > 0 {
				p.wait(wait)
				continue
			}
		}
		p.create = append(p.create, creation{index: i, failures: a.failures, ignored: a.ignored})
	}
}

// backoff returns how long new pods wait because of failures since the last
// success.
func (s state) backoff() time.Duration {
	var lastSuccess, lastFailure time.Time
	for _, pod := range s.pods {
		if t := finishTime(pod); pod.Status.Phase == corev1.PodSucceeded && t.After(lastSuccess) {
			lastSuccess = t
		}
	}
	n := 0
	for _, pod := range s.pods {
		removed := pod.DeletionTimestamp != nil && !hasFinalizer(pod)
		if t := finishTime(pod); failed(s.job, pod) && !removed && t.After(lastSuccess) {
			n++
			if t.After(lastFailure) {
				lastFailure = t
			}
		}
	}
	if n == 0 {
		return 0
	}
	return lastFailure.Add(delay(n)).Sub(s.now)
}

func delay(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	return min(maxBackoff, firstBackoff<<min(failures-1, 10))
}
