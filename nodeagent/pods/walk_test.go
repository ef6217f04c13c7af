package pods

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// world is a runtime and an agent's memory in miniature. Operations that take
// long are begun, and ended by a later event; a crash of the agent loses its
// memory and leaves them where they are.
type world struct {
	t     *rapid.T
	now   time.Time
	pod   *v1.Pod
	boxes []Sandbox
	cs    []Container
	n     int
	mem   Input
	// containers whose start or stop was begun, by what ends it
	begun    map[string]string // container name to ID
	everMain map[string]bool   // sandboxes in which a main container was started
	api      bool              // the API holds the pod
	finished bool
	fails    bool // operations may fail
	rng      *rand.Rand
}

func (w *world) forget() {
	w.mem = Input{StoppedBoxes: map[string]bool{}, ImageReady: map[string]bool{}, Pulling: map[string]bool{}, Starting: map[string]bool{},
		Stopping: map[string]time.Time{}, Holds: map[string]Hold{}, Crashes: map[string]Crash{}}
	w.begun = map[string]string{}
	if w.pod.DeletionTimestamp != nil || !w.api {
		w.mem.Stop = &Stop{Since: w.now, Grace: 20 * time.Second}
	}
}

func (w *world) id(prefix string) string { w.n++; return fmt.Sprintf("%s%d", prefix, w.n) }

func (w *world) find(id string) *Container {
	for i := range w.cs {
		if w.cs[i].ID == id {
			return &w.cs[i]
		}
	}
	return nil
}

func (w *world) end(c *Container, code int32) {
	if c != nil && (c.State == Running || c.State == Unknown) {
		c.State, c.ExitCode, c.FinishedAt = Exited, code, w.now
	}
}

func (w *world) input() Input {
	in := w.mem
	in.Pod, in.Gone, in.Now = w.pod, !w.api, w.now
	in.Observed = Observed{Sandboxes: slices.Clone(w.boxes), Containers: slices.Clone(w.cs)}
	slices.Reverse(in.Sandboxes)
	slices.Reverse(in.Containers)
	in.Probes = map[string]Probe{}
	for _, c := range w.cs {
		if c.State == Running {
			in.Probes[c.ID] = Probe{Started: true}
		}
	}
	return in
}

func (w *world) chance(percent int) bool {
	return w.fails && w.rng.IntN(100) < percent
}

// step takes one transition and checks it against what must never happen.
func (w *world) step() Kind {
	d := Step(w.input())
	switch d.Kind {
	case Prepare:
		w.mem.Prepared, w.mem.Cleaned = true, false
	case CreateSandbox:
		for _, s := range w.boxes {
			if s.Ready {
				w.t.Fatalf("second sandbox beside %s", s.ID)
			}
		}
		if w.chance(20) {
			w.mem.SandboxFailed++
			w.mem.SandboxAfter = w.now.Add(time.Second)
			break
		}
		w.boxes = append(w.boxes, Sandbox{ID: w.id("sb"), Ready: true, Attempt: uint32(d.Attempt), CreatedAt: w.now})
	case PullImage:
		w.mem.Pulling[d.Container] = true
	case StartContainer:
		w.start(d)
	case StopContainers:
		for _, s := range d.Stops {
			if c := w.find(s.ID); c == nil || (c.State != Running && c.State != Unknown) {
				w.t.Fatalf("stops %s, which does not run", s.ID)
			}
			w.mem.Stopping[s.ID] = w.now.Add(s.Grace)
		}
	case StopSandbox:
		for i := range w.boxes {
			if w.boxes[i].ID == d.SandboxID {
				w.boxes[i].Ready = false
			}
		}
		for i := range w.cs {
			if w.cs[i].SandboxID == d.SandboxID {
				if w.cs[i].State == Running {
					w.t.Fatalf("takes the sandbox from under %s", w.cs[i].ID)
				}
			}
		}
		w.mem.StoppedBoxes[d.SandboxID] = true
	case RemoveContainers:
		for _, id := range d.IDs {
			if c := w.find(id); c == nil || c.State == Running {
				w.t.Fatalf("removes %s, which runs or is not there", id)
			}
		}
		w.cs = slices.DeleteFunc(w.cs, func(c Container) bool { return slices.Contains(d.IDs, c.ID) })
	case RemoveSandbox:
		w.boxes = slices.DeleteFunc(w.boxes, func(s Sandbox) bool { return s.ID == d.SandboxID })
		w.cs = slices.DeleteFunc(w.cs, func(c Container) bool { return c.SandboxID == d.SandboxID })
	case Cleanup:
		for _, c := range w.cs {
			if c.State == Running {
				w.t.Fatalf("unmounts the volumes of %s, which runs", c.ID)
			}
		}
		w.mem.Cleaned, w.mem.Prepared = true, false
	case Delete:
		for _, c := range w.cs {
			if c.State == Running {
				w.t.Fatalf("deletes the pod while %s runs", c.ID)
			}
		}
		w.api = false
	case Finish:
		if len(w.cs)+len(w.boxes) > 0 || w.api {
			w.t.Fatalf("finished with %d containers and %d sandboxes left", len(w.cs), len(w.boxes))
		}
		w.finished = true
	}
	return d.Kind
}

func (w *world) start(d Decision) {
	for _, c := range w.cs {
		if c.Name == d.Container && (c.State == Running || c.State == Unknown) {
			w.t.Fatalf("second instance of %s", d.Container)
		}
		if c.Name == d.Container && c.Attempt >= d.Attempt && c.State == Exited {
			w.t.Fatalf("restart count of %s does not grow: %d after %d", d.Container, d.Attempt, c.Attempt)
		}
	}
	if w.mem.Stop != nil || w.pod.DeletionTimestamp != nil {
		w.t.Fatalf("starts %s of a pod that ends", d.Container)
	}
	var box *Sandbox
	for i := range w.boxes {
		if w.boxes[i].ID == d.SandboxID {
			box = &w.boxes[i]
		}
	}
	if box == nil || !box.Ready {
		w.t.Fatalf("starts %s in sandbox %s, which is not ready", d.Container, d.SandboxID)
	}
	w.checkOrder(d)
	if d.Crash != nil {
		w.mem.Crashes[d.Container] = *d.Crash
	}
	delete(w.mem.ImageReady, d.Container)
	id := w.id("c")
	w.cs = append(w.cs, Container{ID: id, SandboxID: d.SandboxID, Name: d.Container, State: Created, Attempt: d.Attempt, CreatedAt: w.now})
	w.mem.Starting[d.Container] = true
	w.begun[d.Container] = id
	for _, c := range w.pod.Spec.Containers {
		if c.Name == d.Container {
			w.everMain[d.SandboxID] = true
		}
	}
}

// checkOrder: what comes before a container in the spec must have completed,
// or for sidecars must run, when it is first started in a sandbox.
func (w *world) checkOrder(d Decision) {
	if w.everMain[d.SandboxID] {
		return
	}
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		if c.Name == d.Container {
			return
		}
		ok := false
		for _, k := range w.cs {
			if k.Name == c.Name && k.SandboxID == d.SandboxID {
				ok = ok || (Restartable(c) && k.State == Running) || (!Restartable(c) && k.State == Exited && k.ExitCode == 0)
			}
		}
		if !ok {
			w.t.Fatalf("starts %s before %s", d.Container, c.Name)
		}
	}
}

// complete ends operations that were begun.
func (w *world) complete() {
	for name := range w.mem.Pulling {
		delete(w.mem.Pulling, name)
		if w.chance(20) {
			w.mem.Holds[name] = Hold{Reason: "ErrImagePull", Until: w.now.Add(10 * time.Second)}
		} else {
			w.mem.ImageReady[name] = true
			delete(w.mem.Holds, name)
		}
	}
	for name, id := range w.begun {
		delete(w.begun, name)
		delete(w.mem.Starting, name)
		c := w.find(id)
		if c == nil || c.State != Created {
			continue
		}
		if w.chance(15) {
			w.mem.Holds[name] = Hold{Reason: "RunContainerError", Until: w.now.Add(2 * time.Second)}
			continue
		}
		if slices.ContainsFunc(w.boxes, func(s Sandbox) bool { return s.ID == c.SandboxID && s.Ready }) {
			c.State, c.StartedAt = Running, w.now
		}
		delete(w.mem.Holds, name)
	}
	for id := range w.mem.Stopping {
		delete(w.mem.Stopping, id)
		w.end(w.find(id), 143)
	}
}

// settle runs without trouble until nothing happens any more. Init containers
// succeed, main containers run.
func (w *world) settle() {
	w.fails = false
	for range 2000 {
		w.complete()
		for i := range w.cs {
			for j := range w.pod.Spec.InitContainers {
				if c := &w.pod.Spec.InitContainers[j]; c.Name == w.cs[i].Name && !Restartable(c) {
					w.end(&w.cs[i], 0)
				}
			}
		}
		if w.step() == Wait && len(w.mem.Starting)+len(w.mem.Pulling)+len(w.mem.Stopping) == 0 {
			d := Step(w.input())
			if d.Kind == Wait && d.Until.IsZero() {
				return
			}
		}
		if w.finished {
			return
		}
		w.now = w.now.Add(10 * time.Second)
	}
	w.t.Fatalf("does not settle: boxes %+v containers %+v memory %+v", w.boxes, w.cs, w.mem)
}

// From any point of any history, agent crashes, dead sandboxes and failures
// included, the pod comes to run, or to have ended; no container ever has two
// running instances, and init order holds in every sandbox.
func TestAnyHistoryConverges(t *testing.T) {
	shapes := [][]string{{"a"}, {"a", "b"}, {"i:i", "a"}, {"i:i", "s:s", "i:j", "a", "b"}, {"s:s", "s:r", "a"}}
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	rapid.Check(t, func(t *rapid.T) {
		// Rapid prefers small numbers, which would make most histories a string
		// of agent crashes: it draws the length and a seed.
		w := &world{t: t, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), now: t0, api: true, fails: true, everMain: map[string]bool{},
			pod: podWith(rapid.SampledFrom(policies).Draw(t, "policy"), rapid.SampledFrom(shapes).Draw(t, "shape")...)}
		w.forget()
		for range rapid.IntRange(0, 300).Draw(t, "events") {
			w.now = w.now.Add(time.Duration(w.rng.IntN(21)) * time.Second)
			switch w.rng.IntN(16) {
			case 0: // the agent is killed and comes back
				w.forget()
			case 1: // a container ends
				if len(w.cs) > 0 {
					w.end(&w.cs[w.rng.IntN(len(w.cs))], int32(w.rng.IntN(2)))
				}
			case 2: // a sandbox dies under its containers
				if len(w.boxes) > 0 {
					w.boxes[len(w.boxes)-1].Ready = false
				}
			case 3: // the host loses power
				if w.rng.IntN(4) == 0 {
					for i := range w.cs {
						w.end(&w.cs[i], 255)
					}
					for i := range w.boxes {
						w.boxes[i].Ready = false
					}
					w.forget()
				}
			case 4: // the pod is deleted
				if w.rng.IntN(10) == 0 && w.pod.DeletionTimestamp == nil && w.api {
					now := metav1.NewTime(w.now)
					w.pod.DeletionTimestamp = &now
					w.mem.Stop = &Stop{Since: w.now, Grace: 20 * time.Second}
				}
			case 5, 6, 7, 8:
				w.complete()
			default:
				if !w.finished {
					w.step()
				}
			}
		}
		if !w.finished {
			w.settle()
		}
		w.verdict()
	})
}

func (w *world) verdict() {
	if !w.api {
		if !w.finished {
			w.t.Fatal("the pod is gone from the API and not from the node")
		}
		return
	}
	in := w.input()
	d := Step(in)
	for i := range w.pod.Spec.Containers {
		c := &w.pod.Spec.Containers[i]
		last := in.Newest(c.Name)
		if d.Done {
			if last != nil && last.State == Running {
				w.t.Fatalf("done, and %s runs", c.Name)
			}
			continue
		}
		if last == nil || (last.State != Running && ShouldRestart(w.pod, c, last)) {
			w.t.Fatalf("settled, and %s does not run: %+v", c.Name, last)
		}
	}
}
