package raftfsm

import (
	"syscall"
	"testing"
	"time"
)

// A leader is frozen for longer than a lease lasts, while the others elect and the lease is kept alive there. When
// it wakes up its timers have run out, and it still believes that it leads: it ends nothing. Without the term in
// the revoke (record.term), the revoke is resent to the new leader like any proposal, and the living lease and its
// key are gone. A lease that nobody keeps alive does end, once.
func TestFrozenLeaderRevokesNoLivingLease(t *testing.T) {
	ps := startProcs(t, 3)
	old := leaderOf(t, ps)
	const ttl = 2
	old.must(childRequest{Op: "grant", Lease: 7, TTL: ttl})
	old.must(childRequest{Op: "put", Key: "kept", Value: "v", Lease: 7})
	if err := old.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var others []*proc
	for _, p := range ps {
		if p != old {
			others = append(others, p)
		}
	}
	next := leaderOf(t, others)
	keep := func(n int) {
		t.Helper()
		tick := time.NewTicker(ttl * time.Second / 8)
		defer tick.Stop()
		for range n {
			if rep := next.once(childRequest{Op: "keepalive", Lease: 7}); rep.Err != "" {
				t.Fatalf("the lease is gone: %s", rep.Err)
			}
			<-tick.C
		}
	}
	next.must(childRequest{Op: "grant", Lease: 8, TTL: ttl})
	next.must(childRequest{Op: "put", Key: "left", Value: "v", Lease: 8})
	keep(12) // longer than the lease lasts at the frozen one
	if err := old.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one that was frozen follows", func() bool {
		return !old.once(childRequest{Op: "status"}).Leads && old.once(childRequest{Op: "get", Key: "kept"}).Err == ""
	})
	keep(12)
	for _, p := range ps {
		if got := p.must(childRequest{Op: "get", Key: "kept"}).Value; got != "v" {
			t.Fatalf("the key of a living lease is gone at %s", p.cc.Name)
		}
	}
	eventually(t, "the lease that nobody keeps alive has ended", func() bool {
		return old.must(childRequest{Op: "get", Key: "left"}).Value == ""
	})
}
