package scheduling

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

func queued(q *queue, now time.Time, name string, prio int32) {
	q.set(cluster.NewPod(Pod(name, "", "", func(p *corev1.Pod) { p.Spec.Priority = &prio })), now)
}

func testQueue() *queue {
	return newQueue(time.Second, backoffMost, func(types.UID) string { return "" })
}

const backoffMost = 10 * time.Second

// refuser is a filter that wakes for what it says.
type refuser struct {
	plugin.Filter
	wakes plugin.Event
}

func (r refuser) Wakes() plugin.Event { return r.wakes }

func by(e plugin.Event) []plugin.Filter { return []plugin.Filter{refuser{wakes: e}} }

func order(q *queue) string {
	var names []string
	now := time.Unix(0, 0)
	for e := q.pop(now); e != nil; e = q.pop(now) {
		names = append(names, e.pod.Name)
	}
	return strings.Join(names, " ")
}

func TestQueueOrdersByPriorityThenAge(t *testing.T) {
	q, now := testQueue(), time.Unix(0, 0)
	for i, p := range []int32{0, 5, 0, 5, -1} {
		queued(q, now.Add(time.Duration(i)), fmt.Sprint("p", i), p)
	}
	if got := order(q); got != "p1 p3 p0 p2 p4" {
		t.Fatal(got)
	}
}

// TestARefusedPodWakesOnlyForWhatCanHelp: an event of another kind leaves it, one
// of its own brings it back, also when it came while the pod was being judged;
// and five minutes bring it back in any case.
func TestARefusedPodWakesOnlyForWhatCanHelp(t *testing.T) {
	var q *queue
	now := time.Unix(0, 0)
	later := now.Add(backoffMost)
	refused := func() {
		q = testQueue()
		queued(q, now, "p", 0)
		q.refuse(q.pop(now), "s", by(plugin.NodeAdded|plugin.PodRemoved), now)
	}
	refused()
	q.happened(plugin.Change{Kind: plugin.NodeTaints}, later)
	if q.pop(later) != nil {
		t.Fatal("woken by what cannot help")
	}
	q.happened(plugin.Change{Kind: plugin.PodRemoved}, later)
	if q.pop(later) == nil {
		t.Fatal("not woken by what can help")
	}

	q = testQueue()
	queued(q, now, "q", 0)
	e := q.pop(now)
	q.happened(plugin.Change{Kind: plugin.NodeAdded}, now)
	q.refuse(e, "s", by(plugin.NodeAdded), now)
	if next := q.due(now); next.IsZero() || next.After(later) {
		t.Fatalf("an event during the judgement was lost: next %v", next)
	}
	if q.due(later); q.pop(later) == nil {
		t.Fatal("not ready after its backoff")
	}

	refused()
	if q.due(now.Add(retryAnyway - 1)); q.pop(now) != nil {
		t.Fatal("woken too early")
	}
	if q.due(now.Add(retryAnyway + sweepEvery)); q.pop(now) == nil {
		t.Fatal("never tried again")
	}
}

// TestPodsOfOneShapeAreWokenOneByOne: the next only when the one before it has
// found a place, so that many that do not fit cost one attempt.
func TestPodsOfOneShapeAreWokenOneByOne(t *testing.T) {
	q, now := testQueue(), time.Unix(0, 0)
	later := now.Add(backoffMost)
	for i := range 5 {
		queued(q, now.Add(time.Duration(i)), fmt.Sprint("p", i), 0)
	}
	for range 5 {
		q.refuse(q.pop(now), "s", by(plugin.PodRemoved), now)
	}
	q.happened(plugin.Change{Kind: plugin.PodRemoved}, later)
	q.happened(plugin.Change{Kind: plugin.PodRemoved}, later)
	e := q.pop(later)
	if e == nil || e.pod.Name != "p0" || q.pop(later) != nil {
		t.Fatal("not one alone, the oldest")
	}
	q.placed(e, later)
	q.remove(e.pod.UID)
	if e = q.pop(later); e == nil || e.pod.Name != "p1" {
		t.Fatal("the next is not woken when the first found a place")
	}
	q.refuse(e, "s", by(plugin.PodRemoved), later)
	if q.pop(later) != nil {
		t.Fatal("woken although the one before it found no place")
	}
	q.happened(plugin.Change{Kind: plugin.PodRemoved}, later)
	if e = q.pop(later); e == nil || e.pod.Name == "p1" {
		t.Fatal("the one whose backoff is over is not preferred")
	}
	q.remove(e.pod.UID)
	q.due(later.Add(backoffMost))
	if q.pop(later) == nil {
		t.Fatal("the next is not woken when the first was deleted")
	}
}

func TestBackoffGrowsAndAPodThatWasDeletedStaysAway(t *testing.T) {
	q, now := testQueue(), time.Unix(0, 0)
	queued(q, now, "p", 0)
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		e := q.pop(now)
		q.retry(e, now)
		if got := q.due(now).Sub(now); got != want*time.Second {
			t.Fatalf("backoff %v, want %vs", got, want)
		}
		now = now.Add(want * time.Second)
		q.due(now)
	}
	e := q.pop(now)
	q.remove(e.pod.UID)
	q.retry(e, now)
	if !q.due(now).IsZero() || q.pop(now) != nil {
		t.Fatal("a deleted pod came back")
	}
}
