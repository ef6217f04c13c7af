// Package heap bounds the garbage of a process that keeps much in memory.
//
// Go lets a heap grow to twice what lives before it collects. For a store of a
// gigabyte that is a gigabyte of nothing, and on a virtual machine each page of it
// is one more that the host must find. Most of such a store are values without
// pointers, which cost a collection next to nothing, so that it may run more often.
package heap

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// share of what lives that may be garbage, in a large heap; in percent.
	share = 25
	// floor is the garbage that is always allowed, up to as much as what lives.
	floor = 128 << 20
)

// Percent returns the GC percent for a heap of which live bytes live: garbage is
// bounded by a quarter of it, or by 128 MiB where that is more, and never by more than
// what lives.
func Percent(live uint64) int {
	if live <= floor {
		return 100
	}
	return int(max(share, floor*100/live))
}

// Bound follows the size of the heap, for the life of the process. It leaves a process alone whose
// environment sets GOGC.
func Bound() {
	if os.Getenv("GOGC") != "" {
		return
	}
	follow(&bound{percent: 100})
}

type bound struct {
	percent int
	_       [16]byte // objects below that share their memory with others, and may outlive them
}

// follow has the end of each collection adjust the next.
func follow(b *bound) {
	runtime.SetFinalizer(b, func(b *bound) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if p := Percent(live[0].Value.Uint64()); p != b.percent {
			debug.SetGCPercent(p)
			b.percent = p
		}
		follow(b)
	})
}
