package scheduling

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
	"github.com/tripod-cluster/tripod/scheduling/plugins/interpodaffinity"
	"github.com/tripod-cluster/tripod/scheduling/plugins/leastallocated"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodeaffinity"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodename"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodeports"
	"github.com/tripod-cluster/tripod/scheduling/plugins/noderesources"
	"github.com/tripod-cluster/tripod/scheduling/plugins/nodeunschedulable"
	"github.com/tripod-cluster/tripod/scheduling/plugins/ownerspread"
	"github.com/tripod-cluster/tripod/scheduling/plugins/podtopologyspread"
	"github.com/tripod-cluster/tripod/scheduling/plugins/tainttoleration"
	"github.com/tripod-cluster/tripod/scheduling/plugins/volumebinding"
)

// filters in the order in which they judge a node: cheap and frequent first. The
// first that refuses gives the reason.
var filters = []plugin.Filter{
	nodeunschedulable.Plugin{}, nodename.Plugin{}, tainttoleration.Plugin{}, nodeaffinity.Plugin{},
	nodeports.Plugin{}, noderesources.Plugin{}, volumebinding.Plugin{}, podtopologyspread.Plugin{}, interpodaffinity.Plugin{},
}

var scores = []plugin.Score{leastallocated.Plugin{}, ownerspread.Plugin{}}

// Refusal says why a pod fits on no node.
type Refusal struct {
	Nodes   int            // how many there are
	Reasons map[string]int // by text: how many nodes it refused; 0 for one that concerns the pod itself
	Wakes   plugin.Event   // what can change it
}

// String is the text of the event and the condition: every reason with its count
// of nodes, most frequent first.
func (r *Refusal) String() string {
	if r.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	texts := make([]string, 0, len(r.Reasons))
	for t := range r.Reasons {
		texts = append(texts, t)
	}
	slices.SortFunc(texts, func(a, b string) int {
		if d := r.Reasons[b] - r.Reasons[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for i, t := range texts {
		if n := r.Reasons[t]; n > 0 {
			texts[i] = fmt.Sprintf("%d %s", n, t)
		}
	}
	return fmt.Sprintf("0/%d nodes are available: %s.", r.Nodes, strings.Join(texts, ", "))
}

// parallelFrom is the number of nodes from which judging them in parallel pays.
const parallelFrom = 256

// decide chooses the node for a pod, or says why there is none. turn varies which
// of equally good nodes is taken.
func decide(p *cluster.Pod, v plugin.View, turn uint64) (*cluster.Node, *Refusal) {
	nodes := v.Nodes()
	refusal := &Refusal{Nodes: len(nodes), Reasons: map[string]int{}, Wakes: plugin.NodeAdded}
	if len(nodes) == 0 {
		return nil, refusal
	}
	type prepared struct {
		f    plugin.Filter
		fits plugin.FilterFunc
	}
	var judges []prepared
	for _, f := range filters {
		fits, r := f.Prepare(p, v)
		if r != nil {
			refusal.Reasons[r.Text], refusal.Wakes = 0, f.Wakes()
			return nil, refusal
		}
		if fits != nil {
			judges = append(judges, prepared{f, fits})
		}
	}
	type verdict struct {
		reason *plugin.Reason
		wakes  plugin.Event
	}
	verdicts := make([]verdict, len(nodes))
	each(len(nodes), func(i int) {
		for _, j := range judges {
			if r := j.fits(nodes[i]); r != nil {
				verdicts[i] = verdict{r, j.f.Wakes()}
				return
			}
		}
	})
	var fit []*cluster.Node
	for i, d := range verdicts {
		if d.reason == nil {
			fit = append(fit, nodes[i])
		} else {
			refusal.Reasons[d.reason.Text]++
			refusal.Wakes |= d.wakes
		}
	}
	if len(fit) == 0 {
		return nil, refusal
	}
	return best(p, v, fit, turn), nil
}

// best takes the node with the highest sum of weighted scores.
func best(p *cluster.Pod, v plugin.View, fit []*cluster.Node, turn uint64) *cluster.Node {
	if len(fit) == 1 {
		return fit[0]
	}
	totals := make([]int64, len(fit))
	for _, s := range scores {
		score := s.Prepare(p, v, fit)
		if score == nil {
			continue
		}
		each(len(fit), func(i int) { totals[i] += s.Weight() * score(fit[i]) })
	}
	start := int(turn % uint64(len(fit)))
	at := start
	for k := range fit {
		if i := (start + k) % len(fit); totals[i] > totals[at] {
			at = i
		}
	}
	return fit[at]
}

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
