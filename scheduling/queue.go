package scheduling

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// A refused pod is tried again after this long even if nothing happened: a
// safeguard against a change that no plugin foresaw. kube-scheduler's figure.
const retryAnyway = 5 * time.Minute

// sweepEvery is how often the pods that wait are looked through for that.
const sweepEvery = 30 * time.Second

// where a pending pod is.
type where int

const (
	nowhere where = iota
	ready         // in the heap of those to place
	backing       // in the heap of those whose time comes
	waiting       // refused, until an event that can help
	flying        // being placed
	gated         // has scheduling gates
)

// pending is one pod that is to be placed.
type pending struct {
	pod      *cluster.Pod
	since    time.Time // when it entered the queue
	tried    time.Time // when it was judged last
	attempts int
	at       where
	until    time.Time       // backing: when it becomes ready; waiting: at the latest
	shape    string          // waiting: those of one shape share a fate
	refusers []plugin.Filter // waiting: what refused it
	missed   []plugin.Change // flying: what happened meanwhile
	index    int             // in its heap
}

// fold is the pods of one shape that wait. A change that can help wakes the first
// of them; the next is woken when that one has found a place, for if it has not,
// none will.
type fold struct {
	members map[types.UID]*pending
	lead    types.UID // the member that was woken, until it is judged
}

// queue orders the pending pods. It has no clock and no lock: its owner tells the
// time and serialises.
type queue struct {
	first, most time.Duration // backoff
	byUID       map[types.UID]*pending
	ready       pendingHeap
	backing     pendingHeap
	folds       map[string]*fold
	nominatedOn func(types.UID) string
	judged      map[types.UID]*pending // being judged: neither refused nor placed yet
	swept       time.Time
	counts      [gated + 1]int // by where
}

// newQueue makes one whose backoff grows from first to most. nominatedOn is the
// node that a pod was promised.
func newQueue(first, most time.Duration, nominatedOn func(types.UID) string) *queue {
	return &queue{first: first, most: most, byUID: map[types.UID]*pending{}, folds: map[string]*fold{}, judged: map[types.UID]*pending{}, nominatedOn: nominatedOn,
		ready: pendingHeap{less: before}, backing: pendingHeap{less: func(a, b *pending) bool { return a.until.Before(b.until) }}}
}

// before orders by priority, then by age.
func before(a, b *pending) bool {
	if a.pod.Priority != b.pod.Priority {
		return a.pod.Priority > b.pod.Priority
	}
	return a.since.Before(b.since)
}

// set adds a pod or takes its new form. A pod that was refused becomes ready, as
// the change may be what it lacked.
func (q *queue) set(p *cluster.Pod, now time.Time) {
	e := q.byUID[p.UID]
	closed := len(p.Spec.SchedulingGates) > 0
	if e == nil {
		e = &pending{pod: p, since: now, index: -1}
		q.byUID[p.UID] = e
		if closed {
			q.put(e, gated)
		} else {
			q.put(e, ready)
		}
		return
	}
	changed := e.pod.Generation != p.Generation || !maps.Equal(e.pod.Labels, p.Labels)
	if e.at == ready || e.at == backing {
		q.unput(e)
		q.counts[e.at]--
		at := e.at
		e.pod, e.at = p, nowhere
		q.put(e, at)
	}
	e.pod = p
	switch {
	case closed:
		if e.at != flying {
			q.put(e, gated)
		}
	case e.at == gated:
		e.since = now
		q.put(e, ready)
	case e.at == waiting && changed:
		q.put(e, ready)
	case e.at == flying && changed:
		e.missed = append(e.missed, plugin.Change{Kind: plugin.AnyEvent})
	}
}

func (q *queue) remove(uid types.UID) {
	e := q.byUID[uid]
	if e == nil {
		return
	}
	shape := e.shape
	q.unput(e)
	q.counts[e.at]--
	delete(q.byUID, uid)
	delete(q.judged, uid)
	q.follow(shape, uid, time.Time{})
}

// put moves a pod to where it is to be.
func (q *queue) put(e *pending, at where) {
	if e.at != nowhere {
		q.unput(e)
		q.counts[e.at]--
	}
	e.at = at
	q.counts[at]++
	switch at {
	case ready:
		heap.Push(&q.ready, e)
	case backing:
		heap.Push(&q.backing, e)
	case waiting:
		f := q.folds[e.shape]
		if f == nil {
			f = &fold{members: map[types.UID]*pending{}}
			q.folds[e.shape] = f
		}
		f.members[e.pod.UID] = e
	}
}

// unput takes a pod out of the heap or fold that it is in.
func (q *queue) unput(e *pending) {
	switch e.at {
	case ready:
		if e.index >= 0 {
			heap.Remove(&q.ready, e.index)
		}
	case backing:
		if e.index >= 0 {
			heap.Remove(&q.backing, e.index)
		}
	case waiting:
		if f := q.folds[e.shape]; f != nil {
			delete(f.members, e.pod.UID)
			if len(f.members) == 0 && f.lead == "" {
				delete(q.folds, e.shape)
			}
		}
	}
}

// pop takes the next pod to place, nil when none is ready.
func (q *queue) pop(now time.Time) *pending {
	if q.ready.Len() == 0 {
		return nil
	}
	e := q.ready.list[0]
	q.put(e, flying)
	e.missed, e.tried = nil, now
	e.attempts++
	q.judged[e.pod.UID] = e
	return e
}

// refuse puts a pod aside that fits nowhere, until an event that can help; at
// once into backoff if one happened while it was judged.
func (q *queue) refuse(e *pending, shape string, by []plugin.Filter, now time.Time) {
	delete(q.judged, e.pod.UID)
	if q.byUID[e.pod.UID] != e {
		return // deleted meanwhile
	}
	if f := q.folds[e.shape]; f != nil && f.lead == e.pod.UID {
		f.lead = ""
		if len(f.members) == 0 {
			delete(q.folds, e.shape)
		}
	}
	e.shape, e.refusers = shape, by
	if len(e.pod.Spec.SchedulingGates) > 0 {
		q.put(e, gated)
		return
	}
	if slices.ContainsFunc(e.missed, e.helps) {
		q.wake(e, now)
		return
	}
	e.until = now.Add(retryAnyway)
	q.put(e, waiting)
}

// placed ends the wait of a pod that has found a node, and wakes the next of its
// shape.
func (q *queue) placed(e *pending, now time.Time) {
	delete(q.judged, e.pod.UID)
	q.follow(e.shape, e.pod.UID, now)
}

// follow wakes the next of a shape after its lead has gone.
func (q *queue) follow(shape string, lead types.UID, now time.Time) {
	f := q.folds[shape]
	if f == nil || f.lead != lead {
		return
	}
	f.lead = ""
	if len(f.members) == 0 {
		delete(q.folds, shape)
		return
	}
	q.wakeOne(f, now)
}

// retry puts a pod into backoff whose placement failed.
func (q *queue) retry(e *pending, now time.Time) {
	if q.byUID[e.pod.UID] == e {
		e.until = now.Add(q.backoff(e.attempts))
		q.put(e, backing)
	}
}

func (q *queue) backoff(attempts int) time.Duration {
	d := q.first
	for i := 1; i < attempts && d < q.most; i++ {
		d *= 2
	}
	return min(d, q.most)
}

// wake makes a refused pod ready, if it is long enough since it was judged.
func (q *queue) wake(e *pending, now time.Time) {
	e.until = e.tried.Add(q.backoff(e.attempts))
	if e.until.After(now) {
		q.put(e, backing)
	} else {
		q.put(e, ready)
	}
}

// wakeOne wakes the member of the fold that may be tried first, unless one is on
// its way. Those that were promised a node wait for that.
func (q *queue) wakeOne(f *fold, now time.Time) {
	if f.lead != "" {
		return
	}
	var first *pending
	var at time.Time
	for _, e := range f.members {
		if q.nominatedOn(e.pod.UID) != "" {
			continue
		}
		t := e.tried.Add(q.backoff(e.attempts))
		if t.Before(now) {
			t = now
		}
		if first == nil || t.Before(at) || t.Equal(at) && before(e, first) {
			first, at = e, t
		}
	}
	if first != nil {
		f.lead = first.pod.UID
		q.wake(first, now)
	}
}

// helps says whether a change can turn what refused the pod.
func (e *pending) helps(c plugin.Change) bool {
	if c.Kind == plugin.AnyEvent {
		return true
	}
	for _, f := range e.refusers {
		if f.Wakes()&c.Kind == 0 {
			continue
		}
		if h, ok := f.(plugin.Hinter); !ok || h.Helps(e.pod, c) {
			return true
		}
	}
	return c.Kind == plugin.NodeAdded && len(e.refusers) == 0
}

// happened wakes the pods that the change can help.
func (q *queue) happened(c plugin.Change, now time.Time) {
	for _, e := range q.byNode(c) {
		q.wake(e, now)
	}
	for _, f := range q.folds {
		for _, e := range f.members { // one speaks for all
			if e.helps(c) {
				q.wakeOne(f, now)
			}
			break
		}
	}
	for _, e := range q.judged {
		e.missed = append(e.missed, c)
	}
}

// byNode are the pods that wait for the node on which something happened.
func (q *queue) byNode(c plugin.Change) []*pending {
	if c.Node == nil {
		return nil
	}
	var out []*pending
	for _, p := range c.Node.Nominated {
		if e := q.byUID[p.UID]; e != nil && e.at == waiting && e.helps(c) {
			out = append(out, e)
		}
	}
	return out
}

// due makes pods ready whose time has come, and returns the next time at which
// to look again, zero when there is none.
func (q *queue) due(now time.Time) (next time.Time) {
	for q.backing.Len() > 0 && !q.backing.list[0].until.After(now) {
		q.put(q.backing.list[0], ready)
	}
	if now.Sub(q.swept) >= sweepEvery {
		q.swept = now
		for _, e := range q.byUID {
			if e.at == waiting && !e.until.After(now) {
				q.put(e, ready)
			}
		}
	}
	if q.backing.Len() > 0 {
		next = q.backing.list[0].until
	}
	return next
}

// pendingHeap is a heap of pods by an order.
type pendingHeap struct {
	list []*pending
	less func(a, b *pending) bool
}

func (h *pendingHeap) Len() int           { return len(h.list) }
func (h *pendingHeap) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }
func (h *pendingHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}

// Push is for container/heap.
func (h *pendingHeap) Push(x any) {
	e := x.(*pending)
	e.index = len(h.list)
	h.list = append(h.list, e)
}

// Pop is for container/heap.
func (h *pendingHeap) Pop() any {
	e := h.list[len(h.list)-1]
	h.list[len(h.list)-1] = nil
	h.list = h.list[:len(h.list)-1]
	e.index = -1
	return e
}
