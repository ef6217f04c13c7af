package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 100}, {10 << 20, 100}, {128 << 20, 100}, {256 << 20, 50}, {512 << 20, 25}, {8 << 30, 25}} {
		if got := Percent(c.live); got != c.want {
			t.Errorf("%d MiB: %d, want %d", c.live>>20, got, c.want)
		}
	}
}

// The percent follows the heap up and down.
func TestBound(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	Bound()
	percent := func() int {
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	until := func(what string, ok func(int) bool) {
		t.Helper()
		for range 1000 { // a finalizer runs some time after its collection
			runtime.GC()
			if ok(percent()) {
				return
			}
		}
		t.Fatalf("%s: %d", what, percent())
	}
	large := make([]byte, 300<<20)
	until("with 300 MiB", func(p int) bool { return p < 50 })
	runtime.KeepAlive(large)
	until("with nothing", func(p int) bool { return p == 100 })
}
