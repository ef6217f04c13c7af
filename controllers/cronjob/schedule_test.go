package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

func newCron(schedule string) *batchv1.CronJob {
	utc := "UTC"
	return &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: schedule, TimeZone: &utc}}
}

func TestLatest(t *testing.T) {
	for _, c := range []struct {
		schedule, from, now, want string
		n                         int
	}{
		{"0 * * * *", "2026-01-01T00:10:00Z", "2026-01-01T00:59:59Z", "", 0},
		{"0 * * * *", "2026-01-01T00:10:00Z", "2026-01-01T01:00:00Z", "2026-01-01T01:00:00Z", 1},
		{"0 * * * *", "2026-01-01T00:10:00Z", "2026-01-01T03:30:00Z", "2026-01-01T03:00:00Z", 3},
		{"* * * * *", "2026-01-01T00:00:30Z", "2026-01-02T00:00:30Z", "2026-01-02T00:00:00Z", 101},
		{"* * * * *", "2016-01-01T00:00:30Z", "2026-01-02T00:00:30Z", "2026-01-02T00:00:00Z", 101},
		{"30 3 * * *", "2016-01-01T00:00:30Z", "2026-01-02T00:00:30Z", "2026-01-01T03:30:00Z", 101},
		{"0 0 29 2 *", "2001-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2024-02-29T00:00:00Z", 6},
		{"@every 7m", "2026-01-01T00:00:00Z", "2026-01-01T00:20:00Z", "2026-01-01T00:14:00Z", 2},
		{"@every 7m", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z", "2026-01-02T23:57:00Z", 101},
		{"0 0 31 2 *", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "", 0},
	} {
		s, _, err := parse(newCron(c.schedule))
		if err != nil {
			t.Fatal(err)
		}
		want := time.Time{}
		if c.want != "" {
			want = at(c.want)
		}
		if got, n := latest(s, at(c.from), at(c.now)); !got.Equal(want) || n != c.n {
			t.Errorf("%s from %s to %s: %s of %d, want %s of %d", c.schedule, c.from, c.now, got, n, c.want, c.n)
		}
	}
}

func TestTimeZones(t *testing.T) {
	for zone, want := range map[string]string{"UTC": "2026-07-01T09:00:00Z", "Europe/Vienna": "2026-07-01T07:00:00Z", "Asia/Kathmandu": "2026-07-01T03:15:00Z"} {
		cj := newCron("0 9 * * *")
		cj.Spec.TimeZone = &zone
		s, _, err := parse(cj)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(at("2026-07-01T00:00:00Z")); !got.Equal(at(want)) {
			t.Errorf("%s: %s, want %s", zone, got.UTC(), want)
		}
	}
	// In the night when clocks go forward the hour from 2 to 3 is not there.
	zone := "Europe/Vienna"
	cj := newCron("30 2 * * *")
	cj.Spec.TimeZone = &zone
	s, _, _ := parse(cj)
	if got := s.Next(at("2026-03-28T12:00:00Z")); !got.Equal(at("2026-03-30T00:30:00Z")) {
		t.Errorf("over the change: %s", got.UTC())
	}
}

func TestBadSchedulesAreNamed(t *testing.T) {
	if _, _, err := parse(newCron("nonsense")); err == nil {
		t.Error("nonsense is a schedule")
	}
	nowhere := "Middle/Earth"
	cj := newCron("0 0 * * *")
	cj.Spec.TimeZone = &nowhere
	if _, _, err := parse(cj); err == nil {
		t.Error("there is a time zone that is not there")
	}
}
