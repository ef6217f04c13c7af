package store

import (
	"slices"
	"sync"
)

// watchIndex finds the watchers of a changed key. Watchers of one key and of
// one prefix are looked up, for each prefix length in use; the few of other
// ranges are asked one by one.
type watchIndex struct {
	mu       sync.Mutex
	n        int
	points   map[string]*watchGroup
	prefixes map[string]*watchGroup
	lengths  []int // distinct lengths of prefixes, ascending
	perLen   []int // for each of lengths, how many prefixes have it
	others   watchGroup
}

type watchGroup struct{ watchers []*Watcher }

func (g *watchGroup) add(w *Watcher) {
	w.slot = len(g.watchers)
	g.watchers = append(g.watchers, w)
}

func (g *watchGroup) remove(w *Watcher) bool {
	if w.slot >= len(g.watchers) || g.watchers[w.slot] != w {
		return false
	}
	last := len(g.watchers) - 1
	g.watchers[w.slot] = g.watchers[last]
	g.watchers[w.slot].slot = w.slot
	g.watchers[last] = nil
	g.watchers = g.watchers[:last]
	return true
}

func (x *watchIndex) init() {
	x.points = map[string]*watchGroup{}
	x.prefixes = map[string]*watchGroup{}
}

// table returns the table that w belongs to, nil for others.
func (x *watchIndex) table(w *Watcher) map[string]*watchGroup {
	switch {
	case w.span.single:
		return x.points
	case !w.span.toEnd && len(w.span.key) > 0 && w.span.end == string(prefixEnd([]byte(w.span.key))):
		return x.prefixes
	}
	return nil
}

func (x *watchIndex) add(w *Watcher) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n++
	table := x.table(w)
	if table == nil {
		x.others.add(w)
		return
	}
	g := table[w.span.key]
	if g == nil {
		g = &watchGroup{}
		table[w.span.key] = g
		if !w.span.single {
			x.countLength(len(w.span.key), 1)
		}
	}
	g.add(w)
}

func (x *watchIndex) remove(w *Watcher) {
	x.mu.Lock()
	defer x.mu.Unlock()
	table := x.table(w)
	g := &x.others
	if table != nil {
		g = table[w.span.key]
	}
	if g == nil || !g.remove(w) {
		return
	}
	x.n--
	if table == nil || len(g.watchers) > 0 {
		return
	}
	delete(table, w.span.key)
	if !w.span.single {
		x.countLength(len(w.span.key), -1)
	}
}

func (x *watchIndex) countLength(n, by int) {
	i, found := slices.BinarySearch(x.lengths, n)
	if !found {
		x.lengths = slices.Insert(x.lengths, i, n)
		x.perLen = slices.Insert(x.perLen, i, 0)
	}
	if x.perLen[i] += by; x.perLen[i] == 0 {
		x.lengths = slices.Delete(x.lengths, i, i+1)
		x.perLen = slices.Delete(x.perLen, i, i+1)
	}
}

// notify tells the watchers of the changes from index mark of the log on.
func (x *watchIndex) notify(log *changeLog, mark int) {
	if mark == log.n {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := mark; i < log.n; i++ {
		kv := log.at(i)
		key := keyString(kv.Key)
		if g := x.points[key]; g != nil {
			for _, w := range g.watchers {
				w.notify(kv)
			}
		}
		for _, n := range x.lengths {
			if n > len(key) {
				break
			}
			if g := x.prefixes[key[:n]]; g != nil {
				for _, w := range g.watchers {
					w.notify(kv)
				}
			}
		}
		for _, w := range x.others.watchers {
			if w.span.contains(key) {
				w.notify(kv)
			}
		}
	}
}

func (x *watchIndex) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.n
}

// all returns every watcher, in no order that matters.
func (x *watchIndex) all() []*Watcher {
	x.mu.Lock()
	defer x.mu.Unlock()
	ws := slices.Clone(x.others.watchers)
	for _, table := range []map[string]*watchGroup{x.points, x.prefixes} {
		for _, g := range table {
			ws = append(ws, g.watchers...)
		}
	}
	return ws
}
