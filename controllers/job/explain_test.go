package job

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWaits(t *testing.T) {
	none := func(types.UID) bool { return false }
	for name, x := range map[string]struct {
		job  *batchv1.Job
		want string // words of one of the waits, "" for no wait at all
		by   string
	}{
		"suspended": {newJob(suspend), "spec.suspend is set", "you"},
		"runs": {newJob(func(j *batchv1.Job) {
			n := int32(3)
			j.Spec.Completions, j.Status.Succeeded, j.Status.Active = &n, 1, 2
		}), "2 of 3 completions (2 pods run, 0 failed)", "its pods"},
		"over": {newJob(func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: "True"}}
		}), "", ""},
		"uncounted": {newJob(func(j *batchv1.Job) {
			j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{"a"}}
		}), "ended pods to be counted", "controller job"},
	} {
		waits := state{job: x.job, stripped: none, now: now}.waits()
		if x.want == "" {
			if len(waits) > 0 {
				t.Errorf("%s: %v", name, waits)
			}
			continue
		}
		found := false
		for _, w := range waits {
			found = found || strings.Contains(w.For, x.want) && w.By == x.by
		}
		if !found {
			t.Errorf("%s: %v", name, waits)
		}
	}
}
