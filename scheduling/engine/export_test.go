package engine

import "github.com/tripod-cluster/tripod/scheduling/cluster"

// Totals are the scores of all nodes that fit, worked out from nothing.
func (e *Engine) Totals(p *cluster.Pod, prof *Profile) map[string]int64 {
	s := e.prepare(p, prof)
	defer e.release(s)
	out := map[string]int64{}
	if s.refused != nil {
		return out
	}
	var fit []*cluster.Node
	for _, n := range e.Nodes() {
		if s.judge(n, p) == nil {
			fit = append(fit, n)
		}
	}
	if len(fit) == 1 { // totals spares itself the work
		return map[string]int64{fit[0].Name: 0}
	}
	for i, v := range s.totals(fit) {
		out[fit[i].Name] = v
	}
	return out
}
