package controlplane

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOneDutyThatFailsHarmsOnlyItself: one task panics, another fails, a third
// goes on; the failing ones come back with a growing pause and say why.
func TestOneDutyThatFailsHarmsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		panics, fails, goodStarts := 0, 0, 0
		duties := []*duty{
			{name: "panics", run: func(context.Context, func()) error { panics++; panic("boom") }},
			{name: "fails", run: func(_ context.Context, ready func()) error { fails++; ready(); return errors.New("no disk") }},
			{name: "good", run: func(ctx context.Context, ready func()) error { goodStarts++; ready(); <-ctx.Done(); return nil }},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { runAll(ctx, log, duties); close(done) }()
		time.Sleep(16 * time.Second) // fake time: starts at 0, 1, 3, 7, 15 s
		synctest.Wait()
		if panics != 5 || fails != 5 || goodStarts != 1 {
			t.Errorf("starts: %d %d %d, want 5 5 1", panics, fails, goodStarts)
		}
		for i, want := range []string{"boom", "no disk", ""} {
			s := duties[i].status()
			if s.Healthy != (want == "") || !strings.Contains(s.LastError, want) {
				t.Errorf("%+v", s)
			}
		}
		cancel()
		<-done
	})
}
