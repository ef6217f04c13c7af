package probes

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind of a probe.
type Kind int

// The kinds of probes.
const (
	Startup Kind = iota
	Liveness
	Readiness
)

func (k Kind) String() string { return [...]string{"Startup", "Liveness", "Readiness"}[k] }

// State is what the probes of one container instance say.
type State struct {
	Started        bool // no startup probe, or it succeeded
	Ready          bool // no readiness probe, or it succeeds
	LivenessFailed bool
	StartupFailed  bool
	Grace          *int64 // seconds, of the probe that failed
	Message        string
}

// Instance is one running container.
type Instance struct {
	ID        string
	Container *v1.Container
	StartedAt time.Time
	// What the API holds of this very instance, told by an earlier agent: it
	// stays until a probe says otherwise, so that a restart of the agent takes
	// no pod out of its Services.
	WasStarted, WasReady bool
}

// Manager runs the probes of a node's containers. Changed is called with a
// pod's UID when a result changed, Unhealthy for every probe that failed; both
// from the manager's goroutines.
type Manager struct {
	Exec      Execer
	Changed   func(types.UID)
	Unhealthy func(pod *v1.Pod, container string, k Kind, message string)

	mu   sync.Mutex
	pods map[types.UID]map[string]*instance
	wg   sync.WaitGroup
}

type instance struct {
	cancel  context.CancelFunc
	relieve context.CancelFunc // ends the probes that would restart the container
	state   State
}

// Sync makes the probes of a pod those of its running containers. terminating
// pods keep only their readiness probes, so that they leave Services but are
// not restarted.
func (m *Manager) Sync(ctx context.Context, pod *v1.Pod, ip string, running []Instance, terminating bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods == nil {
		m.pods = map[types.UID]map[string]*instance{}
	}
	have := m.pods[pod.UID]
	if have == nil {
		have = map[string]*instance{}
		m.pods[pod.UID] = have
	}
	keep := map[string]bool{}
	for _, r := range running {
		keep[r.ID] = true
		if in, ok := have[r.ID]; ok {
			if terminating {
				in.relieve()
			}
			continue
		}
		c := r.Container
		ictx, cancel := context.WithCancel(ctx)
		rctx, relieve := context.WithCancel(ictx)
		in := &instance{cancel: cancel, relieve: relieve, state: State{Started: c.StartupProbe == nil || r.WasStarted, Ready: c.ReadinessProbe == nil || r.WasReady}}
		have[r.ID] = in
		t := Target{ContainerID: r.ID, Container: c, PodIP: ip}
		if !in.state.Started && !terminating {
			m.start(rctx, pod, in, Startup, c.StartupProbe, t, r.StartedAt)
		}
		if c.LivenessProbe != nil && !terminating {
			m.start(rctx, pod, in, Liveness, c.LivenessProbe, t, r.StartedAt)
		}
		if c.ReadinessProbe != nil {
			m.start(ictx, pod, in, Readiness, c.ReadinessProbe, t, r.StartedAt)
		}
	}
	for id, in := range have {
		if !keep[id] {
			in.cancel()
			delete(have, id)
		}
	}
	if len(have) == 0 {
		delete(m.pods, pod.UID)
	}
}

// Forget ends the probes of a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.pods[uid] {
		in.cancel()
	}
	delete(m.pods, uid)
}

// Wait returns when all probe goroutines ended, after their context did.
func (m *Manager) Wait() { m.wg.Wait() }

// States returns the states of a pod's instances by container ID.
func (m *Manager) States(uid types.UID) map[string]State {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]State{}
	for id, in := range m.pods[uid] {
		out[id] = in.state
	}
	return out
}

func (m *Manager) start(ctx context.Context, pod *v1.Pod, in *instance, k Kind, p *v1.Probe, t Target, since time.Time) {
	m.wg.Go(func() { m.loop(ctx, pod, in, k, p, t, since) })
}

func (m *Manager) loop(ctx context.Context, pod *v1.Pod, in *instance, k Kind, p *v1.Probe, t Target, since time.Time) {
	period := time.Duration(p.PeriodSeconds) * time.Second
	if period <= 0 {
		period = 10 * time.Second
	}
	first := time.Until(since.Add(time.Duration(p.InitialDelaySeconds) * time.Second))
	if time.Since(since) > period {
		// Taken over from an earlier agent: not all probes of the node at once.
		first = max(first, time.Duration(rand.Int64N(int64(min(period, time.Second)))))
	}
	timer := time.NewTimer(max(first, 0))
	defer timer.Stop()
	c := counter{probe: p}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(period)
		if k != Startup && !m.started(in) {
			// Looked at again soon after the startup probe succeeds.
			timer.Reset(min(period, time.Second))
			continue
		}
		res, msg := Once(ctx, m.Exec, p, t)
		if ctx.Err() != nil {
			return
		}
		if res == Failure && m.Unhealthy != nil {
			m.Unhealthy(pod, t.Container.Name, k, msg)
		}
		turned, good := c.count(res)
		if !turned {
			continue
		}
		if m.apply(in, k, good, p, msg) && m.Changed != nil {
			m.Changed(pod.UID)
		}
		if (k == Startup) || (k == Liveness && !good) {
			return // succeeded for good, or the container's end is decided
		}
	}
}

func (m *Manager) started(in *instance) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return in.state.Started
}

func (m *Manager) apply(in *instance, k Kind, good bool, p *v1.Probe, msg string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := in.state
	switch k {
	case Startup:
		in.state.Started, in.state.StartupFailed = good, !good
	case Liveness:
		in.state.LivenessFailed = !good
	case Readiness:
		in.state.Ready = good
	}
	if !good {
		in.state.Message = msg
		if k != Readiness {
			in.state.Grace = p.TerminationGracePeriodSeconds
		}
	}
	now := in.state
	return was.Started != now.Started || was.Ready != now.Ready || was.LivenessFailed != now.LivenessFailed || was.StartupFailed != now.StartupFailed
}

// counter turns results into decisions: as many of one kind in a row as the
// probe's threshold says.
type counter struct {
	probe *v1.Probe
	last  Result
	n     int32
}

// count says whether the threshold of r's kind is reached, and which it is.
func (c *counter) count(r Result) (turned, good bool) {
	if r == Unknown {
		return false, false
	}
	if r != c.last {
		c.last, c.n = r, 0
	}
	c.n++
	threshold := c.probe.FailureThreshold
	if r == Success {
		threshold = c.probe.SuccessThreshold
	} else if threshold == 0 {
		threshold = 3
	}
	return c.n >= max(threshold, 1), r == Success
}
