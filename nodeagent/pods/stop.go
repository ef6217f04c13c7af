package pods

import (
	"time"
)

// stop moves a pod that shall end one step on: main containers, sidecars in
// reverse order, sandboxes, volumes and cgroup, the API object, what is left
// in the runtime.
func (m *machine) stop() Action {
	in := m.in
	since, grace := in.Now, m.podGrace()
	if in.Pod == nil {
		grace = m.madeFor()
	}
	if in.Stop != nil {
		since, grace = in.Stop.Since, max(in.Stop.Grace, minGrace)
	}
	stage := m.stage()
	if len(stage) > 0 {
		reason := "Stopping container"
		if a, ok := m.stopAll(stage, since, grace, reason, false); ok {
			return a
		}
		return m.waitAction()
	}
	if len(in.Starting) > 0 || len(in.Pulling) > 0 {
		// What is being started appears as a container, or fails.
		return m.waitAction()
	}
	for _, s := range in.Sandboxes {
		if s.Ready || !in.StoppedBoxes[s.ID] {
			return Action{Kind: StopSandbox, SandboxID: s.ID}
		}
	}
	if !in.Cleaned {
		if in.Now.Before(in.PrepareAfter) {
			m.wait(in.PrepareAfter)
			return m.waitAction()
		}
		return Action{Kind: Cleanup}
	}
	if !in.Gone && in.Pod != nil {
		if in.Pod.DeletionTimestamp == nil {
			return m.waitAction() // ended by itself: its containers stay for their logs
		}
		if in.Now.Before(in.DeleteAfter) {
			m.wait(in.DeleteAfter)
			return m.waitAction()
		}
		return Action{Kind: Delete}
	}
	if len(in.Containers) > 0 {
		var ids []string
		for _, c := range in.Containers {
			ids = append(ids, c.ID)
		}
		return Action{Kind: RemoveContainers, IDs: ids}
	}
	if len(in.Sandboxes) > 0 {
		return Action{Kind: RemoveSandbox, SandboxID: in.Sandboxes[0].ID}
	}
	return Action{Kind: Finish}
}

// madeFor is the grace written on the containers of a pod nobody knows.
func (m *machine) madeFor() time.Duration {
	g := minGrace
	for _, c := range m.in.Containers {
		g = max(g, time.Duration(c.Grace)*time.Second)
	}
	return g
}

// stage returns the containers to end now: all but sidecars first, then the
// last sidecar that lives.
func (m *machine) stage() []*Container {
	in := m.in
	order := map[string]int{}
	if in.Pod != nil {
		for i := range in.Pod.Spec.InitContainers {
			if c := &in.Pod.Spec.InitContainers[i]; Restartable(c) {
				order[c.Name] = i + 1
			}
		}
	}
	var mains []*Container
	var last *Container
	for i := range in.Containers {
		c := &in.Containers[i]
		if c.State != Running && c.State != Unknown {
			continue
		}
		o := order[c.Name]
		if o == 0 {
			mains = append(mains, c)
			continue
		}
		if last == nil || o > order[last.Name] {
			last = c
		}
	}
	if len(mains) > 0 || last == nil {
		return mains
	}
	return []*Container{last}
}

// stopAll stops those of list that are not being stopped, or not soon enough.
func (m *machine) stopAll(list []*Container, since time.Time, grace time.Duration, reason string, restart bool) (Action, bool) {
	var stops []StopOne
	deadline := since.Add(grace)
	for _, c := range list {
		left := max(deadline.Sub(m.in.Now), minGrace)
		by, busy := m.in.Stopping[c.ID]
		if busy && !by.After(deadline.Add(2*time.Second)) {
			continue
		}
		stops = append(stops, StopOne{ID: c.ID, Name: c.Name, Grace: left, Reason: reason, Hook: !busy && c.State == Running, Restart: restart})
	}
	if len(stops) == 0 {
		return Action{}, false
	}
	return Action{Kind: StopContainers, Stops: stops}, true
}
