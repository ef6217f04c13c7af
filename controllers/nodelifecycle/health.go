package nodelifecycle

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// pulse remembers when each node was last heard of.
type pulse struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	nodes map[string]*beat
}

type beat struct {
	heard     time.Time // on our clock
	renewed   metav1.MicroTime
	heartbeat metav1.Time
	marked    metav1.Time // the Ready transition whose pods have been marked
}

func newPulse(c clock.PassiveClock) *pulse { return &pulse{clock: c, nodes: map[string]*beat{}} }

// get returns the node's record, made now if it is new: an unknown node gets
// the full grace period.
func (p *pulse) get(name string) *beat {
	b := p.nodes[name]
	if b == nil {
		b = &beat{heard: p.clock.Now()}
		p.nodes[name] = b
	}
	return b
}

// lease takes notice of a Lease and reports whether it was renewed.
func (p *pulse) lease(l *coordinationv1.Lease) bool {
	if l.Spec.RenewTime == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.get(l.Name)
	if b.renewed.Equal(l.Spec.RenewTime) {
		return false
	}
	b.renewed, b.heard = *l.Spec.RenewTime, p.clock.Now()
	return true
}

// node takes notice of a node's own status.
func (p *pulse) node(n *corev1.Node) {
	c := condition(n.Status.Conditions, corev1.NodeReady)
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.get(n.Name)
	if c != nil && !b.heartbeat.Equal(&c.LastHeartbeatTime) {
		b.heartbeat, b.heard = c.LastHeartbeatTime, p.clock.Now()
	}
}

// silence is how long the node has not been heard of.
func (p *pulse) silence(name string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Since(p.get(name).heard)
}

// refresh gives every node the full grace period anew.
func (p *pulse) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.nodes {
		b.heard = p.clock.Now()
	}
}

func (p *pulse) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nodes, name)
}

// marked returns and sets the Ready transition whose pods have been marked.
func (p *pulse) marked(name string) metav1.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.get(name).marked
}

func (p *pulse) setMarked(name string, t metav1.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.get(name).marked = t
}
