package engine

import (
	"github.com/tripod-cluster/tripod/scheduling/cluster"
)

// Fitting are the nodes that no filter refuses, by name, judged one by one.
func (e *Engine) Fitting(p *cluster.Pod, prof *Profile) []*cluster.Node {
	e.LookAtTerms(p.Terms)
	s := e.prepare(p, prof)
	defer e.release(s)
	if s.refused != nil {
		return nil
	}
	var out []*cluster.Node
	for _, n := range e.Nodes() {
		if s.judge(n, p) == nil {
			out = append(out, n)
		}
	}
	return out
}
