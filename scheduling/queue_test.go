package scheduling

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

func queued(q *queue, now time.Time, name string, prio int32) {
	q.set(cluster.NewPod(Pod(name, "", "", func(p *corev1.Pod) { p.Spec.Priority = &prio })), now)
}

func order(q *queue) string {
	var names []string
	for e := q.pop(); e != nil; e = q.pop() {
		names = append(names, e.pod.Name)
	}
	return strings.Join(names, " ")
}

func TestQueueOrdersByPriorityThenAge(t *testing.T) {
	q, now := newQueue(), time.Unix(0, 0)
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
	q, now := newQueue(), time.Unix(0, 0)
	refused := func() *pending {
		q = newQueue()
		queued(q, now, "p", 0)
		e := q.pop()
		q.refuse(e, plugin.NodeAdded|plugin.PodRemoved, now)
		return e
	}
	refused()
	q.happened(plugin.NodeTaints, now)
	if q.pop() != nil {
		t.Fatal("woken by what cannot help")
	}
	q.happened(plugin.PodRemoved, now)
	if q.pop() == nil {
		t.Fatal("not woken by what can help")
	}

	queued(q, now, "p", 0)
	q = newQueue()
	queued(q, now, "q", 0)
	e := q.pop()
	q.happened(plugin.NodeAdded, now)
	q.refuse(e, plugin.NodeAdded, now)
	if next := q.due(now); next.IsZero() || next.After(now.Add(backoffMost)) {
		t.Fatalf("an event during the judgement was lost: next %v", next)
	}
	if q.due(now.Add(backoffMost)); q.pop() == nil {
		t.Fatal("not ready after its backoff")
	}

	refused()
	if q.due(now.Add(retryAnyway - 1)); q.pop() != nil {
		t.Fatal("woken too early")
	}
	if q.due(now.Add(retryAnyway)); q.pop() == nil {
		t.Fatal("never tried again")
	}
}

func TestBackoffGrowsAndAPodThatWasDeletedStaysAway(t *testing.T) {
	q, now := newQueue(), time.Unix(0, 0)
	queued(q, now, "p", 0)
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		e := q.pop()
		q.retry(e, now)
		if got := q.due(now).Sub(now); got != want*time.Second {
			t.Fatalf("backoff %v, want %vs", got, want)
		}
		now = now.Add(want * time.Second)
		q.due(now)
	}
	e := q.pop()
	q.remove(e.pod.UID)
	q.retry(e, now)
	if !q.due(now).IsZero() || q.pop() != nil {
		t.Fatal("a deleted pod came back")
	}
}
