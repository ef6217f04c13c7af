package pods

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	// minGrace is given to every container, as kubelet does.
	minGrace     = time.Second
	defaultGrace = 30 * time.Second
)

// SpecHash names the part of a container's spec whose change restarts it: its
// name and image (kubelet 1.31 and later hash the same fields).
func SpecHash(c *v1.Container) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%q %q", c.Name, c.Image)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// Restartable says whether an init container is a sidecar.
func Restartable(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// ShouldRestart says whether a container whose last instance ended is to be
// started again.
func ShouldRestart(pod *v1.Pod, c *v1.Container, last *Container) bool {
	if last.Hash != "" && last.Hash != SpecHash(c) {
		return true // what was asked for has not run yet
	}
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil || r.Action != v1.ContainerRestartRuleActionRestart {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, last.ExitCode)
		if in == (r.ExitCodes.Operator == v1.ContainerRestartRuleOnExitCodesOpIn) {
			return true
		}
	}
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = v1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return last.ExitCode != 0
	default:
		return true
	}
}

// Terminal says whether the API already holds the pod's outcome.
func Terminal(pod *v1.Pod) bool {
	return pod != nil && (pod.Status.Phase == v1.PodFailed || pod.Status.Phase == v1.PodSucceeded)
}

// Step names the next transition.
func Step(in Input) Decision {
	m := machine{in: in, waiting: map[string]Hold{}}
	var a Action
	if in.Stop != nil || in.Gone || in.Pod == nil || Terminal(in.Pod) {
		m.done = true
		a = m.stop()
	} else {
		a = m.run()
	}
	return Decision{Action: a, Waiting: m.waiting, Done: m.done}
}

type machine struct {
	in      Input
	waiting map[string]Hold
	until   time.Time
	done    bool
}

// wait makes Wait end at t too.
func (m *machine) wait(t time.Time) {
	if !t.IsZero() && (m.until.IsZero() || t.Before(m.until)) {
		m.until = t
	}
}

func (m *machine) waitAction() Action { return Action{Kind: Wait, Until: m.until} }

// run moves a pod that shall run one step on.
func (m *machine) run() Action {
	in := m.in
	cur := in.ReadySandbox()
	// A sandbox that is not the newest ready one must not keep processes, an
	// address or a port.
	if a, ok := m.clearOld(cur); ok {
		return a
	}
	if cur == nil && !m.wantsSandbox() {
		m.done = true
		return m.stop()
	}
	if !in.Prepared {
		if in.Now.Before(in.PrepareAfter) {
			m.wait(in.PrepareAfter)
			return m.waitAction()
		}
		return Action{Kind: Prepare}
	}
	if cur == nil {
		if in.Now.Before(in.SandboxAfter) {
			m.wait(in.SandboxAfter)
			return m.waitAction()
		}
		// Attempts that failed may have left a sandbox the runtime does not list
		// but whose name is still taken.
		attempt := in.SandboxFailed
		for _, s := range in.Sandboxes {
			attempt = max(attempt, int(s.Attempt)+1)
		}
		return Action{Kind: CreateSandbox, Attempt: attempt}
	}
	return m.containers(cur)
}

// clearOld stops containers in, and takes down, all sandboxes but cur.
func (m *machine) clearOld(cur *Sandbox) (Action, bool) {
	in := m.in
	isCur := func(id string) bool { return cur != nil && cur.ID == id }
	var live []*Container
	for i := range in.Containers {
		c := &in.Containers[i]
		if !isCur(c.SandboxID) && (c.State == Running || c.State == Unknown) {
			live = append(live, c)
		}
	}
	if len(live) > 0 {
		if a, ok := m.stopAll(live, in.Now, m.podGrace(), "Sandbox changed, it will be killed and re-created.", true); ok {
			return a, true
		}
		return m.waitAction(), true
	}
	for i := range in.Sandboxes {
		if s := &in.Sandboxes[i]; !isCur(s.ID) && (s.Ready || !in.StoppedBoxes[s.ID]) {
			return Action{Kind: StopSandbox, SandboxID: s.ID}, true
		}
	}
	return Action{}, false
}

// wantsSandbox says, with no sandbox ready, whether one is to be made.
func (m *machine) wantsSandbox() bool {
	pod := m.in.Pod
	if len(m.in.Containers) == 0 {
		return true
	}
	anyMain, want := false, false
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		last := m.in.Newest(c.Name)
		if last != nil {
			anyMain = true
		}
		if last == nil {
			// A pod that never restarts and has run does not begin again for
			// the containers that did not get their turn.
			want = want || pod.Spec.RestartPolicy != v1.RestartPolicyNever
			continue
		}
		want = want || last.State != Exited || ShouldRestart(pod, c, last)
	}
	if !anyMain && pod.Spec.RestartPolicy != v1.RestartPolicyNever {
		return true // died while initializing
	}
	return want
}

// containers moves the containers in the current sandbox.
func (m *machine) containers(cur *Sandbox) Action {
	in, pod := m.in, m.in.Pod
	initialized := false
	for i := range pod.Spec.Containers {
		if in.In(cur.ID, pod.Spec.Containers[i].Name) != nil {
			initialized = true
		}
	}
	if a, ok := m.unfit(cur, initialized); ok {
		return a
	}
	if a, ok := m.debris(cur); ok {
		return a
	}
	for i := range pod.Spec.EphemeralContainers {
		c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if in.Newest(c.Name) == nil {
			if a, ok := m.start(cur, &c, nil); ok {
				return a
			}
		}
	}
	// Sidecars must live while the pod does, whatever else is waited for.
	ready, failed, next := m.initialize(cur, initialized)
	if next != nil {
		return *next
	}
	if failed {
		m.done = true
		return m.stop()
	}
	if !ready {
		return m.waitAction()
	}
	alive := false
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		last := in.Newest(c.Name)
		if last != nil && last.State != Exited && last.State != Created {
			alive = true
			continue
		}
		if last != nil && last.State == Exited && !ShouldRestart(pod, c, last) {
			continue
		}
		alive = true
		if a, ok := m.start(cur, c, last); ok {
			return a
		}
	}
	if !alive {
		m.done = true
		return m.stop()
	}
	return m.waitAction()
}

// initialize goes through the init containers in order. ready: the main
// containers may start. failed: they never will.
func (m *machine) initialize(cur *Sandbox, initialized bool) (ready, failed bool, next *Action) {
	in, pod := m.in, m.in.Pod
	// A completed init container may have been removed since; a later one
	// with an instance shows that it had completed.
	reached := -1
	for i := range pod.Spec.InitContainers {
		if in.In(cur.ID, pod.Spec.InitContainers[i].Name) != nil {
			reached = i
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		here := in.In(cur.ID, c.Name)
		if Restartable(c) {
			if here != nil && (here.State == Running || here.State == Unknown) {
				if initialized || m.started(here) {
					continue
				}
				return false, false, nil
			}
			if a, ok := m.start(cur, c, in.Newest(c.Name)); ok {
				return false, false, &a
			}
			if initialized {
				continue
			}
			return false, false, nil
		}
		if initialized || (here == nil && i < reached) {
			continue
		}
		switch {
		case here == nil, here.State == Created:
			if a, ok := m.start(cur, c, in.Newest(c.Name)); ok {
				return false, false, &a
			}
			return false, false, nil
		case here.State == Running, here.State == Unknown:
			return false, false, nil
		case here.ExitCode == 0:
			continue
		case !restartInit(pod, c, here):
			return false, true, nil
		default:
			if a, ok := m.start(cur, c, here); ok {
				return false, false, &a
			}
			return false, false, nil
		}
	}
	return true, false, nil
}

// restartInit says whether a failed init container is run again. A pod that
// always restarts its containers restarts a failed init container, not one
// that succeeded.
func restartInit(pod *v1.Pod, c *v1.Container, last *Container) bool {
	return last.ExitCode != 0 && ShouldRestart(pod, c, last)
}

func (m *machine) started(c *Container) bool {
	return !m.in.Starting[c.Name] && m.in.Probes[c.ID].Started
}

// unfit stops containers whose probe failed or whose spec changed.
func (m *machine) unfit(cur *Sandbox, initialized bool) (Action, bool) {
	in, pod := m.in, m.in.Pod
	var stops []StopOne
	check := func(c *v1.Container) {
		i := in.In(cur.ID, c.Name)
		if i == nil || (i.State != Running && i.State != Unknown) {
			return
		}
		if _, busy := in.Stopping[i.ID]; busy {
			return
		}
		s := StopOne{ID: i.ID, Name: c.Name, Grace: m.podGrace(), Hook: true, Restart: true}
		p := in.Probes[i.ID]
		switch {
		case i.State == Unknown:
			s.Reason, s.Hook = "Container is in unknown state, try killing it before restart", false
		case i.Hash != "" && i.Hash != SpecHash(c):
			s.Reason = fmt.Sprintf("Container %s definition changed, will be restarted", c.Name)
		case p.LivenessFailed:
			s.Reason = fmt.Sprintf("Container %s failed liveness probe, will be restarted", c.Name)
		case p.StartupFailed:
			s.Reason = fmt.Sprintf("Container %s failed startup probe, will be restarted", c.Name)
		default:
			return
		}
		if (p.LivenessFailed || p.StartupFailed) && p.Grace != nil {
			s.Grace = max(time.Duration(*p.Grace)*time.Second, minGrace)
		}
		stops = append(stops, s)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if Restartable(c) || !initialized {
			check(c)
		}
	}
	for i := range pod.Spec.Containers {
		check(&pod.Spec.Containers[i])
	}
	if len(stops) == 0 {
		return Action{}, false
	}
	return Action{Kind: StopContainers, Stops: stops}, true
}

// debris removes instances that a newer one has replaced, created ones that
// never started, and then empty sandboxes. The instance before the newest is
// kept: it is the container's last state, and the log of kubectl logs -p.
func (m *machine) debris(cur *Sandbox) (Action, bool) {
	in := m.in
	var ids []string
	seen := map[string]int{}
	for _, c := range in.Containers {
		n := seen[c.Name]
		seen[c.Name]++
		if !in.Starting[c.Name] && (c.State == Created || (c.State == Exited && n > 1)) {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) > 0 {
		return Action{Kind: RemoveContainers, IDs: ids}, true
	}
	for _, s := range in.Sandboxes {
		if s.ID == cur.ID || s.Ready {
			continue
		}
		used := false
		for _, c := range in.Containers {
			used = used || c.SandboxID == s.ID
		}
		if !used {
			return Action{Kind: RemoveSandbox, SandboxID: s.ID}, true
		}
	}
	return Action{}, false
}

// start names the step that brings a container nearer to running; false when
// it has to wait, with the reason noted.
func (m *machine) start(cur *Sandbox, c *v1.Container, last *Container) (Action, bool) {
	in := m.in
	if in.Starting[c.Name] {
		return Action{}, false
	}
	var crash *Crash
	if last != nil && last.State == Exited {
		delay := restartDelay(last, in.Crashes)
		until := last.FinishedAt.Add(delay)
		if in.Now.Before(until) {
			m.wait(until)
			m.waiting[c.Name] = Hold{Reason: "CrashLoopBackOff",
				Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", delay, c.Name, in.Pod.Name, in.Pod.Namespace, in.Pod.UID)}
			return Action{}, false
		}
		crash = &Crash{Delay: nextDelay(delay), At: last.FinishedAt}
	}
	if h, ok := in.Holds[c.Name]; ok {
		m.waiting[c.Name] = h
		if in.Now.Before(h.Until) {
			m.wait(h.Until)
			return Action{}, false
		}
	}
	if len(in.Starting) > 0 || in.Pulling[c.Name] {
		return Action{}, false // one after the other: a postStart hook may be what the next one waits for
	}
	if !in.ImageReady[c.Name] {
		return Action{Kind: PullImage, Container: c.Name, SandboxID: cur.ID}, true
	}
	return Action{Kind: StartContainer, Container: c.Name, SandboxID: cur.ID, Attempt: m.attempt(c.Name, last), Crash: crash}, true
}

// attempt is the restart count of the next instance.
func (m *machine) attempt(name string, last *Container) int {
	if last != nil {
		if last.State == Created {
			return last.Attempt
		}
		return last.Attempt + 1
	}
	st := m.in.Pod.Status
	for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, s := range list {
			if s.Name == name && s.ContainerID != "" {
				return int(s.RestartCount) + 1
			}
		}
	}
	return 0
}

func (m *machine) podGrace() time.Duration {
	if p := m.in.Pod; p != nil && p.Spec.TerminationGracePeriodSeconds != nil {
		return max(time.Duration(*p.Spec.TerminationGracePeriodSeconds)*time.Second, minGrace)
	}
	return defaultGrace
}
