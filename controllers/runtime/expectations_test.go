package runtime

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestExpectations(t *testing.T) {
	now := time.Unix(0, 0)
	e := NewExpectations(func() time.Time { return now })
	check := func(want bool, when string) {
		t.Helper()
		if got := e.Satisfied("k"); got != want {
			t.Errorf("%s: satisfied %v, want %v", when, got, want)
		}
	}
	check(true, "at first")
	e.ExpectCreations("k", 0)
	check(true, "with nothing to create")
	e.ExpectCreations("k", 2)
	e.CreationObserved("k")
	check(false, "with one creation unseen")
	e.CreationObserved("k")
	check(true, "with both seen")
	e.CreationObserved("k") // somebody else's: must not count against later ones
	e.ExpectCreations("k", 1)
	check(false, "after an unexpected one")
	e.Forget("k")
	check(true, "once forgotten")

	e.ExpectDeletion("k", "u1")
	e.DeletionObserved("k", "other")
	check(false, "after another's deletion")
	e.DeletionObserved("k", "u1")
	e.DeletionObserved("k", "u1")
	check(true, "after the deletion")

	e.ExpectCreations("k", 1)
	now = now.Add(expectationsTimeout + time.Second)
	check(true, "after the timeout")
}

func TestSlowStartStopsAtTheFirstFailingBatch(t *testing.T) {
	var calls atomic.Int64
	done, err := SlowStart(100, func() error {
		if calls.Add(1) > 3 {
			return errors.New("quota")
		}
		return nil
	})
	// Batches of 1, 2 and 4: the third fails as a whole.
	if done != 3 || err == nil || calls.Load() != 7 {
		t.Errorf("done %d, err %v, calls %d; want 3, an error, 7", done, err, calls.Load())
	}
	if done, err := SlowStart(10, func() error { return nil }); done != 10 || err != nil {
		t.Errorf("done %d, err %v; want all", done, err)
	}
}

func TestParallelRaisesPanicInCaller(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic was lost")
		}
	}()
	Parallel(5, 2, func(i int) {
		if i == 3 {
			panic("x")
		}
	})
}
