package job

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// explain says what a Job waits for.
func (c *controller) explain(namespace, name string) ([]runtime.Wait, error) {
	job, err := c.jobs.Jobs(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	waits := runtime.DeletionWaits(job)
	if m := job.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		return append(waits, runtime.Wait{For: "its own controller: spec.managedBy is " + *m, By: *m}), nil
	}
	pods := c.pods.OwnedBy(job.UID)
	s := state{job: job, pods: pods, stripped: c.stripped.has, now: c.clock.Now()}
	return append(append(waits, s.waits()...), runtime.PodsWait(unended(pods))...), nil
}

func unended(pods []*corev1.Pod) (out []*corev1.Pod) {
	for _, p := range pods {
		if !podstate.Terminal(p) {
			out = append(out, p)
		}
	}
	return out
}

// waits says what the Job waits for, but for the troubles of its pods.
func (s state) waits() (waits []runtime.Wait) {
	const me = "controller job"
	add := func(by, format string, args ...any) {
		waits = append(waits, runtime.Wait{For: fmt.Sprintf(format, args...), By: by})
	}
	st := &s.job.Status
	if finished(st) {
		return nil
	}
	if s.suspended() {
		add("you", "to be resumed: spec.suspend is set")
	}
	if c := interim(st); c != nil {
		add("kubelet of their nodes", "its pods to end: it is to be %s (%s: %s)", c.Type, c.Reason, c.Message)
	}
	if uncounted(st) {
		add(me, "ended pods to be counted")
	}
	if wait := s.backoff(); wait > 0 && !s.suspended() {
		add(me, "%s before the next pod, for pods failed", wait.Round(time.Second))
	}
	switch n := s.job.Spec.Completions; {
	case n != nil:
		add("its pods", "%d of %d completions (%d pods run, %d failed)", *n-st.Succeeded, *n, st.Active, st.Failed)
	case len(waits) == 0:
		add("its pods", "one of its pods to succeed (%d pods run, %d failed)", st.Active, st.Failed)
	}
	return waits
}
