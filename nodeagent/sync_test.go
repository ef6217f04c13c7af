package nodeagent

import (
	"testing"
	"time"
)

func TestASlowRuntimeDoesNotStallTheSyncLoop(t *testing.T) {
	a := &Agent{cfg: Config{SyncInterval: time.Second}}
	for _, c := range []struct {
		took   time.Duration
		synced bool
		want   time.Duration
	}{
		{5 * time.Millisecond, true, time.Second},
		{200 * time.Millisecond, true, 4 * time.Second},
		{6 * time.Second, true, longestPause},
		{listTimeout, true, longestPause},
		{listTimeout, false, time.Second},
	} {
		if got := a.pause(c.took, c.synced); got != c.want {
			t.Errorf("a listing of %v (synced %v): pause %v, want %v", c.took, c.synced, got, c.want)
		}
	}
	if listTimeout+longestPause >= stallAfter {
		t.Errorf("a listing may take %v and the pause %v: the agent counts as stalled after %v", listTimeout, longestPause, stallAfter)
	}
}
