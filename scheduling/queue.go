package scheduling

import (
	"container/heap"
	"time"

	"k8s.io/apimachinery/pkg/types"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

const (
	backoffFirst = time.Second
	backoffMost  = 10 * time.Second
	// A refused pod is tried again after this long even if nothing happened: a
	// safeguard against a change that no plugin foresaw. kube-scheduler's figure.
	retryAnyway = 5 * time.Minute
)

// where a pending pod is.
type where int

const (
	ready   where = iota // in the heap
	backing              // until its time
	waiting              // refused, until an event that can help
	flying               // being placed
)

// pending is one pod that is to be placed.
type pending struct {
	pod      *cluster.Pod
	priority int32
	since    time.Time // when it entered the queue
	attempts int
	at       where
	until    time.Time    // backing, waiting: when it becomes ready at the latest
	wakes    plugin.Event // waiting: what can help
	missed   plugin.Event // flying: what happened meanwhile
	index    int          // in the heap
}

// queue orders the pending pods. It has no clock and no lock: its owner tells the
// time and serialises.
type queue struct {
	byUID map[types.UID]*pending
	heap  readyHeap
}

func newQueue() *queue { return &queue{byUID: map[types.UID]*pending{}} }

// set adds a pod or takes its new form. A pod that was refused becomes ready, as
// the change may be what it lacked.
func (q *queue) set(p *cluster.Pod, now time.Time) {
	e := q.byUID[p.UID]
	if e == nil {
		e = &pending{pod: p, priority: corehelpers.PodPriority(p.Pod), since: now, index: -1}
		q.byUID[p.UID] = e
		q.push(e)
		return
	}
	changed := e.pod.Generation != p.Generation || !equalStrings(e.pod.Labels, p.Labels) || len(e.pod.Spec.SchedulingGates) != len(p.Spec.SchedulingGates)
	e.pod = p
	if e.at == waiting && changed {
		q.push(e)
	}
	if e.at == flying && changed {
		e.missed = plugin.AnyEvent
	}
}

func equalStrings(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

func (q *queue) remove(uid types.UID) {
	if e := q.byUID[uid]; e != nil {
		if e.index >= 0 {
			heap.Remove(&q.heap, e.index)
		}
		delete(q.byUID, uid)
	}
}

func (q *queue) push(e *pending) {
	e.at = ready
	heap.Push(&q.heap, e)
}

// pop takes the next pod to place, nil when none is ready.
func (q *queue) pop() *pending {
	if q.heap.Len() == 0 {
		return nil
	}
	e := heap.Pop(&q.heap).(*pending)
	e.at, e.missed = flying, 0
	e.attempts++
	return e
}

// refuse puts a pod aside that fits nowhere, until an event that can help; at
// once into backoff if one happened while it was judged.
func (q *queue) refuse(e *pending, wakes plugin.Event, now time.Time) {
	if q.byUID[e.pod.UID] != e {
		return // deleted meanwhile
	}
	e.wakes = wakes
	if e.missed&wakes != 0 {
		q.backOff(e, now)
		return
	}
	e.at, e.until = waiting, now.Add(retryAnyway)
}

// retry puts a pod into backoff whose placement failed.
func (q *queue) retry(e *pending, now time.Time) {
	if q.byUID[e.pod.UID] == e {
		q.backOff(e, now)
	}
}

func (q *queue) backOff(e *pending, now time.Time) {
	d := backoffFirst
	for i := 1; i < e.attempts && d < backoffMost; i++ {
		d *= 2
	}
	e.at, e.until = backing, now.Add(min(d, backoffMost))
}

// happened wakes the pods that the event can help.
func (q *queue) happened(ev plugin.Event, now time.Time) {
	for _, e := range q.byUID {
		switch {
		case e.at == flying:
			e.missed |= ev
		case e.at == waiting && e.wakes&ev != 0:
			if e.attempts <= 1 {
				q.push(e)
			} else {
				q.backOff(e, now)
			}
		}
	}
}

// due makes pods ready whose time has come, and returns the next time at which
// to look again, zero when there is none.
func (q *queue) due(now time.Time) (next time.Time) {
	for _, e := range q.byUID {
		if e.at != backing && e.at != waiting {
			continue
		}
		if !e.until.After(now) {
			q.push(e)
		} else if next.IsZero() || e.until.Before(next) {
			next = e.until
		}
	}
	return next
}

// counts are the pods by state, for metrics.
func (q *queue) counts() (active, backoff, unschedulable int) {
	for _, e := range q.byUID {
		switch e.at {
		case ready, flying:
			active++
		case backing:
			backoff++
		case waiting:
			unschedulable++
		}
	}
	return active, backoff, unschedulable
}

// readyHeap orders by priority, then by age.
type readyHeap []*pending

func (h readyHeap) Len() int { return len(h) }
func (h readyHeap) Less(i, j int) bool {
	if h[i].priority != h[j].priority {
		return h[i].priority > h[j].priority
	}
	return h[i].since.Before(h[j].since)
}
func (h readyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *readyHeap) Push(x any) {
	e := x.(*pending)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *readyHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}
