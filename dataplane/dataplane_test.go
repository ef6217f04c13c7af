package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestNothingIsWrittenBeforeEverythingIsKnown(t *testing.T) {
	b := newFake("a")
	d := start(t, Config{Backend: b})
	one, two := testService("one", TCP), testService("two", TCP)
	d.Set(one)
	d.Set(two)
	if d.InSync() {
		t.Error("in sync before Ready")
	}
	if got := b.said(); len(got) > 0 {
		t.Errorf("before Ready the backend was asked for %v", got)
	}
	d.Ready()
	waitFor(t, "the first sync", d.InSync)
	if got := b.said(); len(got) != 1 || got[0] != "sync one two" {
		t.Errorf("the backend was asked for %v, want one sync of both", got)
	}
}

func TestAChangeWritesWhatChanged(t *testing.T) {
	b := newFake("a")
	d := start(t, Config{Backend: b})
	one, two := testService("one", TCP, "10.244.0.1:80"), testService("two", TCP)
	d.Set(one)
	d.Set(two)
	d.Ready()
	waitFor(t, "the first sync", d.InSync)

	changed := testService("one", TCP, "10.244.0.2:80")
	d.Set(changed)
	waitFor(t, "the update", func() bool { return d.InSync() && b.holds(changed) })
	d.Set(testService("one", TCP, "10.244.0.2:80")) // equal: nothing to do
	d.Remove(two.ID)
	d.Remove(ID{Name: "unknown"})
	waitFor(t, "the removal", func() bool { return d.InSync() && !b.holds(two) })
	want := []string{"sync one two", "update one", "delete two"}
	if got := b.said(); strings.Join(got, ";") != strings.Join(want, ";") {
		t.Errorf("the backend was asked for %q, want %q", got, want)
	}
	if st := d.Status(); len(st) != 1 || st[0].ID != one.ID || st[0].State != Done {
		t.Errorf("status %+v, want one service done", st)
	}
}

func TestAFailureIsShownRetriedAndHealed(t *testing.T) {
	b := newFake("a")
	d := start(t, Config{Backend: b, UnhealthyAfter: time.Millisecond})
	s := testService("one", TCP)
	d.Ready()
	waitFor(t, "the first sync", d.InSync)
	b.set(func() { b.fail = errKernel })
	d.Set(s)
	waitFor(t, "the failure to show", func() bool {
		st := d.Status()
		return len(st) == 1 && st[0].State == Error && errors.Is(st[0].Err, errKernel)
	})
	waitFor(t, "health to complain", func() bool { return errors.Is(d.Healthy(), errKernel) })
	if d.InSync() {
		t.Error("in sync in spite of a failure")
	}
	waitFor(t, "retries", func() bool { return len(b.said()) > 3 })
	for _, c := range b.said()[2:] { // what the kernel holds is not known: everything is verified
		if c != "sync one" {
			t.Errorf("retried by %q, want a sync", c)
		}
	}
	b.set(func() { b.fail = nil })
	waitFor(t, "healing", func() bool { return d.InSync() && b.holds(s) && d.Healthy() == nil })
	if st := d.Status(); st[0].State != Done || st[0].Err != nil || st[0].Tries != 0 {
		t.Errorf("after healing the status is %+v", st)
	}
}

func TestOneBadServiceHarmsOnlyItself(t *testing.T) {
	b := newFake("a")
	bad, good := testService("bad", TCP), testService("good", TCP)
	b.refused = map[ID]error{bad.ID: errKernel}
	d := start(t, Config{Backend: b})
	d.Set(bad)
	d.Set(good)
	d.Ready()
	waitFor(t, "the good one", func() bool { return b.holds(good) })
	waitFor(t, "the bad one to show", func() bool { st := d.Status(); return st[0].State == Error && st[1].State == Done })
	later := testService("good", TCP, "10.244.0.9:80")
	d.Set(later)
	waitFor(t, "a change of the good one", func() bool { return b.holds(later) })
	b.set(func() { b.refused = nil })
	waitFor(t, "the bad one to heal by a retry", func() bool { return b.holds(bad) && d.InSync() })
}

func TestWhatWasLostIsFoundByTheNextVerification(t *testing.T) {
	b := newFake("a")
	d := start(t, Config{Backend: b, ResyncInterval: 5 * time.Millisecond})
	s := testService("one", TCP)
	d.Set(s)
	d.Ready()
	waitFor(t, "the first sync", func() bool { return b.holds(s) })
	b.set(func() { b.kernel = map[ID]*Service{} })
	waitFor(t, "the verification", func() bool { return b.holds(s) })
}

func TestStaleModesAreCleanedOnceInSync(t *testing.T) {
	b, old := newFake("ipvs"), newFake("iptables")
	d := start(t, Config{Backend: b, Stale: []Backend{old}})
	d.Ready()
	waitFor(t, "the clean-up", func() bool { old.mu.Lock(); defer old.mu.Unlock(); return old.closed })
	if got := old.said(); len(got) != 1 || got[0] != "cleanup" {
		t.Errorf("the stale backend was asked for %v", got)
	}
}

func TestSwitchingWritesTheNewBeforeCleaningTheOld(t *testing.T) {
	old, next := newFake("iptables"), newFake("ipvs")
	d := start(t, Config{Backend: old})
	s := testService("one", TCP)
	d.Set(s)
	d.Ready()
	waitFor(t, "the first sync", d.InSync)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.SetBackend(ctx, next); err != nil {
		t.Fatal(err)
	}
	if !next.holds(s) || old.holds(s) || !old.closed || d.Mode() != "ipvs" {
		t.Errorf("after the switch: new holds it %v, old holds it %v, old closed %v, mode %s", next.holds(s), old.holds(s), old.closed, d.Mode())
	}
	after := testService("two", TCP)
	d.Set(after)
	waitFor(t, "a later change in the new one", func() bool { return next.holds(after) })
}

func TestNewSettingsOfTheSameModeCleanNothingUp(t *testing.T) {
	old, next := newFake("ipvs"), newFake("ipvs")
	d := start(t, Config{Backend: old})
	s := testService("one", TCP)
	d.Set(s)
	d.Ready()
	waitFor(t, "the first sync", d.InSync)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.SetBackend(ctx, next); err != nil {
		t.Fatal(err)
	}
	if got := old.said(); len(got) != 1 || !old.closed {
		t.Errorf("the old backend was asked for %v, closed %v: it owns what the new one wrote", got, old.closed)
	}
	if !next.holds(s) {
		t.Error("the new backend does not hold the service")
	}
}

func TestASwitchThatFailsKeepsTheOld(t *testing.T) {
	old, next := newFake("iptables"), newFake("ipvs")
	d := start(t, Config{Backend: old})
	s := testService("one", TCP)
	d.Set(s)
	d.Ready()
	waitFor(t, "the first sync", d.InSync)
	next.fail = errKernel
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.SetBackend(ctx, next); !errors.Is(err, errKernel) {
		t.Errorf("switch gave %v", err)
	}
	if !old.holds(s) || old.closed || !next.closed || d.Mode() != "iptables" {
		t.Error("the old mode is not in use as before")
	}
}

func TestFlowsOfGoneUDPBackendsAreCleaned(t *testing.T) {
	b, flows := newFake("a"), &fakeFlows{}
	d := start(t, Config{Backend: b, Flows: flows})
	dns := testService("dns", UDP, "10.244.0.1:53", "10.244.0.2:53")
	web := testService("web", TCP, "10.244.0.1:80")
	d.Set(dns)
	d.Set(web)
	d.Ready()
	waitFor(t, "the first sync", d.InSync)
	if got := flows.take(); len(got) != 1 || names(got[0]) != "dns" {
		t.Errorf("at the start flows of %v were looked at, want dns", got)
	}
	for _, step := range []struct {
		what  string
		do    func()
		clean bool
	}{
		{"an endpoint more", func() { d.Set(testService("dns", UDP, "10.244.0.1:53", "10.244.0.2:53", "10.244.0.3:53")) }, false},
		{"one less", func() { d.Set(testService("dns", UDP, "10.244.0.1:53")) }, true},
		{"none", func() { d.Set(testService("dns", UDP)) }, true},
		{"from none to one", func() { d.Set(testService("dns", UDP, "10.244.0.4:53")) }, true},
		{"TCP loses one", func() { d.Set(testService("web", TCP)) }, false},
		{"another address", func() {
			s := testService("dns", UDP, "10.244.0.4:53")
			s.ClusterIP = netip.MustParseAddr("10.96.0.9")
			d.Set(s)
		}, true},
		{"gone", func() { d.Remove(dns.ID) }, true},
	} {
		step.do()
		waitFor(t, step.what, d.InSync)
		if got := flows.take(); (len(got) > 0) != step.clean {
			t.Errorf("%s: flows cleaned %v, want %v", step.what, got, step.clean)
		}
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := New(Config{Backend: newFake("a"), Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range got {
		found[m.GetName()] = true
	}
	for _, n := range []string{"tripod_dataplane_services", "tripod_dataplane_rules", "tripod_dataplane_errors_total", "tripod_dataplane_last_sync_timestamp_seconds"} {
		if !found[n] {
			t.Errorf("metric %s is missing", n)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a Dataplane without backend was made")
	}
}
