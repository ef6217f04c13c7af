package cronjob

import (
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/robfig/cron/v3"
)

// manyMissed is how many missed times are worth a warning.
const manyMissed = 100

// parse reads the schedule of a CronJob, in its time zone or else that of the
// process.
func parse(cj *batchv1.CronJob) (cron.Schedule, *time.Location, error) {
	text, zone := cj.Spec.Schedule, time.Local
	if cj.Spec.TimeZone != nil {
		var err error
		if zone, err = time.LoadLocation(*cj.Spec.TimeZone); err != nil {
			return nil, nil, fmt.Errorf("unknown timeZone %q: use a name of the time zone database, such as Europe/Vienna: %w", *cj.Spec.TimeZone, err)
		}
		text = "TZ=" + *cj.Spec.TimeZone + " " + text
	}
	s, err := cron.ParseStandard(text)
	if err != nil {
		return nil, nil, fmt.Errorf("unparseable schedule %q: %w", cj.Spec.Schedule, err)
	}
	if named, _, ok := strings.Cut(text, " "); ok && cj.Spec.TimeZone == nil {
		if _, name, ok := strings.Cut(named, "TZ="); ok { // of old CronJobs only
			if l, err := time.LoadLocation(name); err == nil {
				zone = l
			}
		}
	}
	return s, zone, nil
}

// latest returns the latest scheduled time after from and not after now, zero
// for none, and how many there are, counted to manyMissed+1 at most.
func latest(s cron.Schedule, from, now time.Time) (at time.Time, n int) {
	for t := s.Next(from); !t.IsZero() && !t.After(now) && n <= manyMissed; t = s.Next(t) {
		at = t
		n++
	}
	if n <= manyMissed {
		return at, n
	}
	if every, ok := s.(cron.ConstantDelaySchedule); ok {
		// Its times depend on where one begins.
		return at.Add(now.Sub(at).Truncate(every.Delay)), n
	}
	// Back from now, in steps that double until one holds a time: a walk through
	// all the times of years would take long.
	for back := time.Hour; ; back *= 2 {
		begin := now.Add(-back)
		if begin.Before(at) {
			begin = at
		}
		found := at
		for t := s.Next(begin); !t.IsZero() && !t.After(now); t = s.Next(t) {
			found = t
		}
		if found.After(at) || begin.Equal(at) {
			return found, n
		}
	}
}
