package raftfsm

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Leadership tells whether this peer leads. It leads once it has committed an entry of its term and
// applied everything before it.
type Leadership struct {
	IsLeader bool
	// Term is the raft term of the leadership; a new term without IsLeader having been seen false
	// means that it was lost and won again.
	Term uint64
}

// leader is who leads, as far as this peer knows.
type leader struct {
	id      PeerID // 0: nobody known
	self    bool   // raft runs as leader here
	term    uint64
	changed <-chan struct{} // closed when any of this, or readiness, is no longer true
}

// leadTracker follows raft's leadership.
type leadTracker struct {
	n    *Node
	wake chan struct{}

	mu       sync.Mutex
	now      leader
	changed  chan struct{}
	ready    uint64 // term whose barrier this peer applied as leader
	barrier  uint64 // term for which a barrier is under way
	told     Leadership
	known    time.Time // when this process first knew a leader
	led      time.Time // when raft began to lead here, where it does
	watchers []chan Leadership
}

func newLeadTracker(n *Node) *leadTracker {
	t := &leadTracker{n: n, wake: make(chan struct{}, 1), changed: make(chan struct{})}
	t.now.changed = t.changed
	return t
}

func (t *leadTracker) current() leader {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// since is how long ago this process first knew a leader, and how long ago this peer, which leads, began to.
func (t *leadTracker) since() (known, led time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.known), time.Since(t.led)
}

// readyTerm is the term in which this peer may act as leader, 0 if none. It asks raft, so that what was
// known a moment ago does not count.
func (t *leadTracker) readyTerm() uint64 {
	t.mu.Lock()
	ready := t.ready
	t.mu.Unlock()
	if ready != 0 && t.n.raft.State() == raft.Leader && t.n.raft.CurrentTerm() == ready {
		return ready
	}
	return 0
}

func (t *leadTracker) run() {
	obs := make(chan raft.Observation, 1)
	o := raft.NewObserver(obs, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	t.n.raft.RegisterObserver(o)
	defer t.n.raft.DeregisterObserver(o)
	// The observations are the news; the tick is for what they cannot tell: a term that changed
	// within one state, a barrier that failed.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		t.refresh()
		select {
		case <-t.n.stop:
			return
		case <-obs:
		case <-t.n.raft.LeaderCh():
		case <-t.wake:
		case <-tick.C:
		}
	}
}

func (t *leadTracker) kick() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// applied is called when the own barrier of term was applied.
func (t *leadTracker) applied(term uint64) {
	t.mu.Lock()
	t.ready = term
	t.mu.Unlock()
	t.kick()
}

func (t *leadTracker) refresh() {
	r := t.n.raft
	_, sid := r.LeaderWithID()
	id, _ := ParsePeerID(string(sid))
	self := r.State() == raft.Leader
	term := r.CurrentTerm()
	if self {
		id = t.n.id
	} else if id == t.n.id {
		id = 0
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	lead := Leadership{IsLeader: self && t.ready == term}
	if lead.IsLeader {
		lead.Term = term
	}
	if t.now.id != id || t.now.self != self || t.now.term != term || t.told != lead {
		if t.now.id != id {
			t.n.log.Info("raft leader changed", "leader", id.String(), "term", term, "self", self)
			t.n.metrics.leaderChanges.Inc()
		}
		if t.known.IsZero() && id != 0 {
			t.known = time.Now()
		}
		if self && (!t.now.self || t.now.term != term) {
			t.led = time.Now()
		}
		close(t.changed)
		t.changed = make(chan struct{})
		t.now = leader{id: id, self: self, term: term, changed: t.changed}
	}
	if t.told != lead {
		t.told = lead
		for _, w := range t.watchers {
			tell(w, lead)
		}
		t.n.leases.lead(lead.Term)
	}
	if self && t.ready != term && t.barrier != term {
		t.barrier = term
		b := record{kind: recBarrier, peer: t.n.id, boot: t.n.boot, seq: 1}
		fut := r.ApplyLog(raft.Log{Data: sealEntry(b.appendTo(newEntry(64)))}, time.Second)
		t.n.wg.Go(func() {
			if err := t.n.await(fut); err != nil {
				t.mu.Lock()
				if t.barrier == term {
					t.barrier = 0 // the tick tries again if raft still leads
				}
				t.mu.Unlock()
			}
		})
	}
}

// tell replaces what the watcher has not yet read.
func tell(w chan Leadership, l Leadership) {
	for {
		select {
		case w <- l:
			return
		default:
		}
		select {
		case <-w:
		default:
		}
	}
}

// Leadership returns a new channel that delivers the present state at once and then each change; values
// not read in time are replaced by newer ones. Every caller gets a channel of its own. It is closed after
// a last false when the Node closes.
func (n *Node) Leadership() <-chan Leadership {
	t := n.lead
	w := make(chan Leadership, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watchers == nil && n.stopping() {
		w <- Leadership{}
		close(w)
		return w
	}
	w <- t.told
	t.watchers = append(t.watchers, w)
	return w
}

func (t *leadTracker) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.watchers {
		if t.told.IsLeader {
			tell(w, Leadership{})
		}
		close(w)
	}
	t.told = Leadership{}
	t.watchers = nil
}
