package pods

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func always() *v1.ContainerRestartPolicy {
	p := v1.ContainerRestartPolicyAlways
	return &p
}

// podWith makes a pod: "s:NAME" is a sidecar, "i:NAME" an init container,
// other names are main containers.
func podWith(policy v1.RestartPolicy, names ...string) *v1.Pod {
	g := int64(20)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: &g}}
	for _, n := range names {
		switch {
		case strings.HasPrefix(n, "i:"):
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: n[2:], Image: "x"})
		case strings.HasPrefix(n, "s:"):
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: n[2:], Image: "x", RestartPolicy: always()})
		default:
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: n, Image: "x"})
		}
	}
	return p
}

func inst(name string, s State, attempt int, exit int32) Container {
	c := Container{ID: name + string(rune('0'+attempt)), SandboxID: "sb", Name: name, State: s, Attempt: attempt, ExitCode: exit, CreatedAt: t0, StartedAt: t0}
	if s == Exited {
		c.FinishedAt = t0.Add(time.Second)
	}
	return c
}

func input(p *v1.Pod, cs ...Container) Input {
	return Input{Pod: p, Now: t0.Add(time.Minute), Prepared: true, ImageReady: map[string]bool{"a": true, "b": true, "i": true, "j": true, "s": true},
		Observed: Observed{Sandboxes: []Sandbox{{ID: "sb", Ready: true, IPs: []string{"10.0.0.1"}}}, Containers: cs}, Probes: map[string]Probe{}}
}

func TestStep(t *testing.T) {
	never, onFailure, alwaysP := v1.RestartPolicyNever, v1.RestartPolicyOnFailure, v1.RestartPolicyAlways
	with := func(in Input, f func(*Input)) Input { f(&in); return in }
	deleted := func(in *Input) {
		now := metav1.NewTime(t0)
		in.Pod.DeletionTimestamp = &now
		in.Stop = &Stop{Since: in.Now, Grace: 20 * time.Second}
	}
	for _, c := range []struct {
		name      string
		in        Input
		want      Kind
		container string
		attempt   int
	}{
		{"nothing is prepared", with(input(podWith(alwaysP, "a")), func(i *Input) { i.Prepared = false; i.Sandboxes = nil }), Prepare, "", 0},
		{"preparation failed a moment ago", with(input(podWith(alwaysP, "a")), func(i *Input) { i.Prepared = false; i.PrepareAfter = i.Now.Add(1) }), Wait, "", 0},
		{"no sandbox", with(input(podWith(alwaysP, "a")), func(i *Input) { i.Sandboxes = nil }), CreateSandbox, "", 0},
		{"image first", with(input(podWith(alwaysP, "a")), func(i *Input) { i.ImageReady = nil }), PullImage, "a", 0},
		{"then start", input(podWith(alwaysP, "a")), StartContainer, "a", 0},
		{"one after the other", with(input(podWith(alwaysP, "a", "b")), func(i *Input) { i.Starting = map[string]bool{"a": true} }), Wait, "", 0},
		{"the second", input(podWith(alwaysP, "a", "b"), inst("a", Running, 0, 0)), StartContainer, "b", 0},
		{"all run", input(podWith(alwaysP, "a"), inst("a", Running, 0, 0)), Wait, "", 0},
		{"ended, restarted", input(podWith(alwaysP, "a"), inst("a", Exited, 0, 0)), StartContainer, "a", 1},
		{"failed, restarted", input(podWith(onFailure, "a"), inst("a", Exited, 2, 1)), StartContainer, "a", 3},
		{"succeeded, not restarted on failure", input(podWith(onFailure, "a"), inst("a", Exited, 0, 0)), StopSandbox, "", 0},
		{"failed, never restarted", input(podWith(never, "a"), inst("a", Exited, 0, 1)), StopSandbox, "", 0},
		{"never restarted, the other still runs", input(podWith(never, "a", "b"), inst("a", Exited, 0, 1), inst("b", Running, 0, 0)), Wait, "", 0},
		{"back-off of the second crash", with(input(podWith(alwaysP, "a"), inst("a", Exited, 1, 1)), func(i *Input) { i.Now = t0.Add(5 * time.Second) }), Wait, "", 0},
		{"count goes on from the API's when no instance is left", with(input(podWith(alwaysP, "a")), func(i *Input) {
			i.Pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", RestartCount: 4, ContainerID: "containerd://x"}}
		}), StartContainer, "a", 5},

		{"init before main", input(podWith(alwaysP, "i:i", "i:j", "a")), StartContainer, "i", 0},
		{"second init after the first succeeded", input(podWith(alwaysP, "i:i", "i:j", "a"), inst("i", Exited, 0, 0)), StartContainer, "j", 0},
		{"main waits for init", input(podWith(alwaysP, "i:i", "a"), inst("i", Running, 0, 0)), Wait, "", 0},
		{"main after init", input(podWith(alwaysP, "i:i", "a"), inst("i", Exited, 0, 0)), StartContainer, "a", 0},
		{"failed init is run again", input(podWith(alwaysP, "i:i", "a"), inst("i", Exited, 0, 1)), StartContainer, "i", 1},
		{"failed init ends a pod that never restarts", input(podWith(never, "i:i", "a"), inst("i", Exited, 0, 1)), StopSandbox, "", 0},
		{"removed init had completed", input(podWith(alwaysP, "i:i", "i:j", "a"), inst("j", Exited, 0, 0)), StartContainer, "a", 0},
		{"init is not run again once main ran", input(podWith(alwaysP, "i:i", "a"), inst("a", Exited, 0, 1)), StartContainer, "a", 1},

		{"sidecar blocks until started", input(podWith(alwaysP, "s:s", "a"), inst("s", Running, 0, 0)), Wait, "", 0},
		{"main after the sidecar started", with(input(podWith(alwaysP, "s:s", "a"), inst("s", Running, 0, 0)), func(i *Input) { i.Probes["s0"] = Probe{Started: true} }), StartContainer, "a", 0},
		{"dead sidecar is restarted while main runs", input(podWith(never, "s:s", "a"), inst("s", Exited, 0, 0), inst("a", Running, 0, 0)), StartContainer, "s", 1},
		{"sidecar is stopped when main is done", with(input(podWith(never, "s:s", "a"), inst("s", Running, 0, 0), inst("a", Exited, 0, 0)), func(i *Input) { i.Probes["s0"] = Probe{Started: true} }), StopContainers, "s", 0},

		{"liveness", with(input(podWith(alwaysP, "a"), inst("a", Running, 0, 0)), func(i *Input) { i.Probes["a0"] = Probe{Started: true, LivenessFailed: true} }), StopContainers, "a", 0},
		{"liveness, already being stopped", with(input(podWith(alwaysP, "a"), inst("a", Running, 0, 0)), func(i *Input) {
			i.Probes["a0"] = Probe{Started: true, LivenessFailed: true}
			i.Stopping = map[string]time.Time{"a0": i.Now.Add(5 * time.Second)}
		}), Wait, "", 0},
		{"image changed", with(input(podWith(alwaysP, "a"), inst("a", Running, 0, 0)), func(i *Input) { i.Containers[0].Hash = "other" }), StopContainers, "a", 0},
		{"unknown state", input(podWith(alwaysP, "a"), inst("a", Unknown, 0, 0)), StopContainers, "a", 0},
		{"created and left by a crash", input(podWith(alwaysP, "a"), inst("a", Created, 0, 0)), RemoveContainers, "", 0},

		{"sandbox died: containers go first", with(input(podWith(alwaysP, "a"), inst("a", Running, 0, 0)), func(i *Input) { i.Sandboxes[0].Ready = false }), StopContainers, "a", 0},
		{"sandbox died: then its network", with(input(podWith(alwaysP, "a"), inst("a", Exited, 0, 137)), func(i *Input) { i.Sandboxes[0].Ready = false }), StopSandbox, "", 0},
		{"sandbox died: then a new one", with(input(podWith(alwaysP, "a"), inst("a", Exited, 0, 137)), func(i *Input) {
			i.Sandboxes[0].Ready = false
			i.StoppedBoxes = map[string]bool{"sb": true}
		}), CreateSandbox, "", 1},
		{"sandbox of a pod that never restarts died", with(input(podWith(never, "a"), inst("a", Exited, 0, 137)), func(i *Input) {
			i.Sandboxes[0].Ready = false
			i.StoppedBoxes = map[string]bool{"sb": true}
		}), Cleanup, "", 0},

		{"deleted: main first", with(input(podWith(alwaysP, "s:s", "a"), inst("s", Running, 0, 0), inst("a", Running, 0, 0)), deleted), StopContainers, "a", 0},
		{"deleted: sidecar next", with(input(podWith(alwaysP, "s:s", "a"), inst("s", Running, 0, 0), inst("a", Exited, 0, 0)), deleted), StopContainers, "s", 0},
		{"deleted: sandbox next", with(input(podWith(alwaysP, "a"), inst("a", Exited, 0, 0)), deleted), StopSandbox, "", 0},
		{"deleted: API last", with(input(podWith(alwaysP, "a"), inst("a", Exited, 0, 0)), func(i *Input) {
			deleted(i)
			i.Sandboxes[0].Ready, i.StoppedBoxes, i.Cleaned = false, map[string]bool{"sb": true}, true
		}), Delete, "", 0},
		{"deleted before it began", with(input(podWith(alwaysP, "a")), func(i *Input) { deleted(i); i.Sandboxes = nil; i.Cleaned = true }), Delete, "", 0},
		{"gone: containers removed", with(input(podWith(alwaysP, "a"), inst("a", Exited, 0, 0)), func(i *Input) {
			i.Gone, i.Sandboxes[0].Ready, i.StoppedBoxes, i.Cleaned = true, false, map[string]bool{"sb": true}, true
		}), RemoveContainers, "", 0},
		{"gone: nothing left", Input{Pod: podWith(alwaysP, "a"), Gone: true, Cleaned: true}, Finish, "", 0},
		{"a pod nobody knows is stopped", with(input(nil, inst("a", Running, 0, 0)), func(i *Input) { i.Gone = true }), StopContainers, "a", 0},
		{"less grace overtakes", with(input(podWith(alwaysP, "a"), inst("a", Running, 0, 0)), func(i *Input) {
			deleted(i)
			i.Stop.Grace = time.Second
			i.Stopping = map[string]time.Time{"a0": i.Now.Add(20 * time.Second)}
		}), StopContainers, "a", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Step(c.in)
			name := d.Container
			if len(d.Stops) == 1 {
				name = d.Stops[0].Name
			}
			if d.Kind != c.want || name != c.container || d.Attempt != c.attempt {
				t.Fatalf("got %s of %q attempt %d, want %s of %q attempt %d", d.Kind, name, d.Attempt, c.want, c.container, c.attempt)
			}
		})
	}
}

func TestBackoffDoublesAndResets(t *testing.T) {
	memory := map[string]Crash{}
	at := t0
	var got []time.Duration
	crash := func(life time.Duration, attempt int) {
		at = at.Add(life)
		last := &Container{Name: "a", State: Exited, Attempt: attempt, StartedAt: at.Add(-life), FinishedAt: at}
		d := restartDelay(last, memory)
		got = append(got, d)
		memory["a"] = Crash{Delay: nextDelay(d), At: at}
	}
	for i := range 8 {
		crash(time.Second, i)
	}
	crash(11*time.Minute, 8)
	crash(time.Second, 9)
	want := []time.Duration{0, 10, 20, 40, 80, 160, 300, 300, 0, 10}
	for i := range want {
		if got[i] != want[i]*time.Second {
			t.Fatalf("crash %d waits %s, want %s (all: %v)", i, got[i], want[i]*time.Second, got)
		}
	}
}

func TestBackoffIsTakenOverWithoutMemory(t *testing.T) {
	for attempt, want := range []time.Duration{0, 10, 20, 40, 80, 160, 300, 300} {
		last := &Container{Name: "a", State: Exited, Attempt: attempt, StartedAt: t0, FinishedAt: t0.Add(time.Second)}
		if got := restartDelay(last, nil); got != want*time.Second {
			t.Errorf("attempt %d waits %s, want %s", attempt, got, want*time.Second)
		}
	}
}

func TestWaitingReasonNamesTheBackoff(t *testing.T) {
	in := input(podWith(v1.RestartPolicyAlways, "a"), inst("a", Exited, 1, 1))
	in.Now = t0.Add(3 * time.Second)
	d := Step(in)
	if d.Waiting["a"].Reason != "CrashLoopBackOff" || !d.Until.Equal(t0.Add(11*time.Second)) {
		t.Fatalf("got %+v until %s", d.Waiting["a"], d.Until)
	}
}
