package status

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/tripod-cluster/tripod/nodeagent/pods"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func pod(policy v1.RestartPolicy) *v1.Pod {
	always := v1.ContainerRestartPolicyAlways
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Generation: 3}, Spec: v1.PodSpec{RestartPolicy: policy,
		InitContainers: []v1.Container{{Name: "i"}, {Name: "s", RestartPolicy: &always}}, Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
}

func inst(name string, s pods.State, attempt int, exit int32) pods.Container {
	c := pods.Container{ID: name + string(rune('0'+attempt)), SandboxID: "sb", Name: name, State: s, Attempt: attempt, ExitCode: exit, StartedAt: t0}
	if s == pods.Exited {
		c.FinishedAt = t0.Add(time.Second)
	}
	return c
}

func input(p *v1.Pod, cs ...pods.Container) Input {
	in := Input{Pod: p, Now: t0.Add(time.Minute), HostIPs: []string{"192.0.2.1"}, Probes: map[string]Readiness{}, Waiting: map[string]pods.Hold{},
		Observed: pods.Observed{Sandboxes: []pods.Sandbox{{ID: "sb", Ready: true, IPs: []string{"10.0.0.1"}}}, Containers: cs}}
	for _, c := range cs {
		if c.State == pods.Running {
			in.Probes[c.ID] = Readiness{Started: true, Ready: true}
		}
	}
	return in
}

func cond(st v1.PodStatus, t v1.PodConditionType) (v1.ConditionStatus, string) {
	for _, c := range st.Conditions {
		if c.Type == t {
			return c.Status, c.Reason
		}
	}
	return "", ""
}

func TestPhasesAndConditions(t *testing.T) {
	done := inst("i", pods.Exited, 0, 0)
	side := inst("s", pods.Running, 0, 0)
	run := func(n string) pods.Container { return inst(n, pods.Running, 0, 0) }
	end := func(n string, code int32) pods.Container { return inst(n, pods.Exited, 0, code) }
	for _, c := range []struct {
		name        string
		policy      v1.RestartPolicy
		cs          []pods.Container
		done        bool
		noBox       bool
		stop        *pods.Stop
		phase       v1.PodPhase
		ready, init v1.ConditionStatus
		reason      string
	}{
		{"nothing yet", v1.RestartPolicyAlways, nil, false, true, nil, v1.PodPending, "False", "False", "ContainersNotReady"},
		{"initializing", v1.RestartPolicyAlways, []pods.Container{run("i")}, false, false, nil, v1.PodPending, "False", "False", "ContainersNotReady"},
		{"initialized", v1.RestartPolicyAlways, []pods.Container{done, side}, false, false, nil, v1.PodPending, "False", "True", "ContainersNotReady"},
		{"one of two started", v1.RestartPolicyAlways, []pods.Container{done, side, run("a")}, false, false, nil, v1.PodPending, "False", "True", "ContainersNotReady"},
		{"running", v1.RestartPolicyAlways, []pods.Container{done, side, run("a"), run("b")}, false, false, nil, v1.PodRunning, "True", "True", ""},
		{"one restarts", v1.RestartPolicyAlways, []pods.Container{done, side, run("a"), end("b", 1)}, false, false, nil, v1.PodRunning, "False", "True", "ContainersNotReady"},
		{"succeeded", v1.RestartPolicyNever, []pods.Container{done, end("s", 0), end("a", 0), end("b", 0)}, true, true, nil, v1.PodSucceeded, "False", "True", "PodCompleted"},
		{"succeeded, sidecar failing at its end", v1.RestartPolicyNever, []pods.Container{done, end("s", 137), end("a", 0), end("b", 0)}, true, true, nil, v1.PodSucceeded, "False", "True", "PodCompleted"},
		{"ended, sidecar still runs", v1.RestartPolicyNever, []pods.Container{done, side, end("a", 0), end("b", 0)}, true, false, nil, v1.PodRunning, "False", "True", "ContainersNotReady"},
		{"failed", v1.RestartPolicyNever, []pods.Container{done, end("s", 0), end("a", 0), end("b", 2)}, true, true, nil, v1.PodFailed, "False", "True", "PodFailed"},
		{"init failed", v1.RestartPolicyNever, []pods.Container{end("i", 1)}, true, true, nil, v1.PodFailed, "False", "False", "PodFailed"},
		{"deadline, still stopping", v1.RestartPolicyAlways, []pods.Container{done, side, run("a"), run("b")}, true, false, &pods.Stop{Reason: "DeadlineExceeded"}, v1.PodRunning, "True", "True", ""},
		{"deadline", v1.RestartPolicyAlways, []pods.Container{done, end("s", 0), end("a", 0), end("b", 0)}, true, true, &pods.Stop{Reason: "DeadlineExceeded"}, v1.PodFailed, "False", "True", "PodFailed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := input(pod(c.policy), c.cs...)
			in.Done, in.Stop = c.done, c.stop
			if c.noBox {
				in.Observed.Sandboxes = nil
			}
			st := Compute(in)
			ready, reason := cond(st, v1.PodReady)
			initialized, _ := cond(st, v1.PodInitialized)
			if st.Phase != c.phase || ready != c.ready || reason != c.reason || initialized != c.init {
				t.Errorf("phase %s, ready %s (%s), initialized %s; want %s, %s (%s), %s", st.Phase, ready, reason, initialized, c.phase, c.ready, c.reason, c.init)
			}
			if c.stop != nil && st.Reason != c.stop.Reason {
				t.Errorf("reason %q", st.Reason)
			}
		})
	}
}

func TestContainerStates(t *testing.T) {
	in := input(pod(v1.RestartPolicyAlways), inst("a", pods.Exited, 1, 1), inst("a", pods.Exited, 0, 2), inst("i", pods.Exited, 0, 0))
	in.Waiting["a"] = pods.Hold{Reason: "CrashLoopBackOff", Message: "back-off"}
	st := Compute(in)
	a := st.ContainerStatuses[0]
	if a.State.Waiting == nil || a.State.Waiting.Reason != "CrashLoopBackOff" || a.LastTerminationState.Terminated.ContainerID != "containerd://a1" || a.RestartCount != 1 {
		t.Errorf("crash loop: %+v", a)
	}
	if b := st.ContainerStatuses[1]; b.State.Waiting == nil || b.State.Waiting.Reason != "ContainerCreating" {
		t.Errorf("not begun: %+v", b.State)
	}
	in = input(pod(v1.RestartPolicyAlways), inst("a", pods.Running, 1, 0), inst("a", pods.Exited, 0, 137))
	in.Probes["a1"] = Readiness{Started: false, Ready: true}
	a = Compute(in).ContainerStatuses[0]
	if a.State.Running == nil || a.Ready || *a.Started || a.LastTerminationState.Terminated == nil || a.LastTerminationState.Terminated.Reason != "Error" {
		t.Errorf("restarted, startup probe pending: %+v", a)
	}
	in = input(pod(v1.RestartPolicyAlways))
	if got := Compute(in).ContainerStatuses[0].State.Waiting.Reason; got != "PodInitializing" {
		t.Errorf("before init: %s", got)
	}
}

func TestReportedEndsOutliveTheirContainers(t *testing.T) {
	p := pod(v1.RestartPolicyNever)
	in := input(p, inst("a", pods.Exited, 0, 0), inst("b", pods.Exited, 0, 0))
	in.Observed.Containers[0].Message = "all done"
	in.Done = true
	p.Status = Compute(in)
	in = input(p, inst("a", pods.Exited, 0, 0)) // the message file is gone, and so is b
	in.Done = true
	st := Compute(in)
	if m := st.ContainerStatuses[0].State.Terminated.Message; m != "all done" {
		t.Errorf("message %q", m)
	}
	if s := st.ContainerStatuses[1].State.Terminated; s == nil || s.Reason != "Completed" {
		t.Errorf("b: %+v", st.ContainerStatuses[1])
	}
	// A container that ran, and of which nothing is known now.
	p = pod(v1.RestartPolicyNever)
	p.Status = Compute(input(p, inst("a", pods.Running, 0, 0), inst("b", pods.Running, 0, 0)))
	in = input(p)
	in.Done = true
	if s := Compute(in).ContainerStatuses[0].State.Terminated; s == nil || s.Reason != ReasonUnknown || s.ExitCode != 137 {
		t.Errorf("lost: %+v", s)
	}
}

func TestTransitionTimesChangeOnlyWithTheirCondition(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Status = Compute(input(p))
	in := input(p)
	in.Now = t0.Add(time.Hour)
	if st := Compute(in); !Equal(st, p.Status) {
		t.Errorf("a status changes though nothing did:\n%+v\n%+v", p.Status, st)
	}
}

func TestForeignConditionsAndGates(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	p.Spec.InitContainers = nil
	p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/x"}}
	in := input(p, inst("a", pods.Running, 0, 0), inst("b", pods.Running, 0, 0))
	st := Compute(in)
	if ready, reason := cond(st, v1.PodReady); ready != "False" || reason != "ReadinessGatesNotReady" {
		t.Errorf("gate missing: %s %s", ready, reason)
	}
	p.Status.Conditions = []v1.PodCondition{{Type: "example.com/x", Status: "True"}}
	st = Compute(in)
	if ready, _ := cond(st, v1.PodReady); ready != "True" {
		t.Error("gate met, pod not ready")
	}
	if s, _ := cond(st, "example.com/x"); s != "True" {
		t.Error("a condition of someone else was dropped")
	}
}

func TestManagerSendsTheNewestUntilItArrives(t *testing.T) {
	p := pod(v1.RestartPolicyAlways)
	c := fake.NewClientset(p)
	fails := 2
	c.PrependReactor("patch", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
		if fails--; fails >= 0 {
			return true, nil, errors.New("api is away")
		}
		return false, nil, nil
	})
	sent := make(chan *v1.Pod, 10)
	m := NewManager(c, slog.New(slog.DiscardHandler), func(p *v1.Pod) { sent <- p })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	m.Set(p, v1.PodStatus{Phase: v1.PodPending})
	m.Set(p, v1.PodStatus{Phase: v1.PodRunning})
	for {
		select {
		case got := <-sent:
			if got.Status.Phase == v1.PodRunning {
				return
			}
		case <-time.After(time.Minute):
			t.Fatal("the status never arrived")
		}
	}
}

func TestDeleteSendsTheLastStatusFirst(t *testing.T) {
	p := pod(v1.RestartPolicyNever)
	c := fake.NewClientset(p)
	m := NewManager(c, slog.New(slog.DiscardHandler), nil)
	m.Set(p, v1.PodStatus{Phase: v1.PodSucceeded})
	if err := m.Delete(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	var verbs []string
	for _, a := range c.Actions() {
		verbs = append(verbs, a.GetVerb())
	}
	if len(verbs) != 2 || verbs[0] != "patch" || verbs[1] != "delete" {
		t.Errorf("requests: %v", verbs)
	}
	if err := m.Delete(context.Background(), p); err != nil {
		t.Errorf("a pod that is gone: %v", err)
	}
}
