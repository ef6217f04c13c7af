// Package engine decides: which node a pod goes to, what refuses it everywhere
// else, and which pods would have to go for it. It talks to nobody and has no
// clock; its owner serialises.
//
// Pods that no filter and no score tells apart are of one shape. What was worked
// out for the first of them is kept: for each node a verdict and a score of its
// own, and groups of nodes that are equal in everything that hangs on the rest of
// the cluster (the counts of plugin.Check.Over). A group is judged once, by its
// best node, and its nodes are a heap by score. A placement changes one node, so
// the next pod of the shape costs what changed since, not the number of nodes.
//
// A shape that is seen for the first time is not worth all that: its pod is
// placed by a plain scan, which stops when it has found enough nodes.
package engine

import (
	"container/list"
	"math/rand/v2"
	"runtime"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// Weighted is a score and what its values are multiplied with.
type Weighted struct {
	plugin.Score
	Weight int64
}

// Profile is how the pods of one schedulerName are placed.
type Profile struct {
	// Name is the pods' schedulerName.
	Name string
	// Filters in the order in which they judge a node: the first that refuses
	// gives the reason.
	Filters []plugin.Filter
	Scores  []Weighted
	// Percentage of the nodes that a scan looks for before it chooses; 0: fewer the
	// more nodes there are; 100: all.
	Percentage int
	// Preempts says whether pods may take the place of others.
	Preempts bool
	// CandidatesPercent and CandidatesLeast bound how many nodes are looked at for
	// preemption.
	CandidatesPercent, CandidatesLeast int
}

// Engine decides over one cluster.
type Engine struct {
	*cluster.Cluster
	objects    plugin.Objects
	shapes     map[string]*list.Element // of *shape
	recent     *list.List               // shapes, the one used last in front
	seen       map[string]struct{}      // shapes that were placed by a scan
	storage    uint64                   // moves with volumes and claims
	services   uint64                   // moves with Services
	budgets    []Budget
	budgetsGen uint64 // moves with them
	start      int    // where the next scan begins
	rnd        *rand.Rand
}

// How many shapes are kept, and how many are remembered as seen.
const (
	keepShapes = 128
	keepSeen   = 4096
)

// New makes an engine over the cluster, which it does not own.
func New(c *cluster.Cluster, o plugin.Objects) *Engine {
	return &Engine{Cluster: c, objects: o, shapes: map[string]*list.Element{}, recent: list.New(), seen: map[string]struct{}{}, rnd: rand.New(rand.NewPCG(1, 2))}
}

// ServicesChanged voids what was worked out from the selectors of Services.
func (e *Engine) ServicesChanged() { e.services++ }

// OwnerCame voids what was worked out for pods of a controller before it was
// known.
func (e *Engine) OwnerCame(uid types.UID) {
	for el := e.recent.Front(); el != nil; {
		next := el.Next()
		if el.Value.(*shape).pod.Owner == uid {
			e.forget(el)
		}
		el = next
	}
}

// Decision is the outcome for one pod.
type Decision struct {
	// Node is where it goes; nil when it fits nowhere.
	Node *cluster.Node
	// Refusal says why it fits nowhere; nil when it does.
	Refusal *Refusal
	// Shape is equal for pods that share a fate: when one is refused, so are the
	// others until something changes.
	Shape string
}

// ShapeOf is the Shape of a decision for the pod.
func (e *Engine) ShapeOf(p *cluster.Pod, prof *Profile) string {
	_, labels := e.LabelsInUse(p.Labels)
	return prof.Name + "\x00" + labels + "\x00" + p.Template()
}

// Decide chooses the node for a pod. It changes nothing but what it remembers.
func (e *Engine) Decide(p *cluster.Pod, prof *Profile) Decision {
	e.LookAtTerms(p.Terms)
	key := e.ShapeOf(p, prof)
	if name := e.NominatedOn(p.UID); name != "" {
		if n := e.Get(name); n != nil {
			if s := e.prepare(p, prof); s.refused == nil && s.judge(n, p) == nil {
				e.release(s)
				return Decision{Node: n, Shape: key}
			} else {
				e.release(s)
			}
		}
	}
	el := e.shapes[key]
	if el == nil {
		// What hangs on claims changes with every pod that has them.
		if _, again := e.seen[key]; !again || p.HasClaims() {
			if len(e.seen) >= keepSeen {
				clear(e.seen)
			}
			e.seen[key] = struct{}{}
			s := e.prepare(p, prof)
			defer e.release(s)
			n, r := s.scan(p)
			return Decision{Node: n, Refusal: r, Shape: key}
		}
		el = e.recent.PushFront(e.prepare(p, prof))
		e.shapes[key] = el
		el.Value.(*shape).key = key
		if e.recent.Len() > keepShapes {
			e.forget(e.recent.Back())
		}
	}
	e.recent.MoveToFront(el)
	s := el.Value.(*shape)
	if s.stale() {
		e.release(s)
		fresh := e.prepare(p, prof)
		// Preparing may have made the labels in use more: the key is another then,
		// and the old one is never asked for again.
		fresh.key = key
		el.Value = fresh
		s = fresh
	}
	n, r := s.choose(p)
	return Decision{Node: n, Refusal: r, Shape: key}
}

func (e *Engine) forget(el *list.Element) {
	s := el.Value.(*shape)
	e.release(s)
	delete(e.shapes, s.key)
	e.recent.Remove(el)
}

func (e *Engine) release(s *shape) {
	for _, c := range s.counters {
		e.Release(c)
	}
	s.counters = nil
}

// view is what a shape's plugins see: it notes the counters that they ask for.
type view struct {
	*cluster.Cluster
	plugin.Objects
	shape *shape
}

// Counter of the cluster; the shape gives it back.
func (v view) Counter(s cluster.CounterSpec) *cluster.Counter {
	c := v.Cluster.Counter(s)
	v.shape.counters = append(v.shape.counters, c)
	return c
}

// parallelFrom is the number of nodes from which judging them in parallel pays.
const parallelFrom = 512

// each calls f for 0 to n-1, on all processors where that pays.
func each(n int, f func(int)) {
	workers := runtime.GOMAXPROCS(0)
	if n < parallelFrom || workers == 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := n * w / workers; i < n*(w+1)/workers; i++ {
				f(i)
			}
		})
	}
	wg.Wait()
}
