package linearizability

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"

	"go.etcd.io/etcd/tests/v3/robustness/model"

	"github.com/tripod-cluster/tripod/raftfsm"
)

// memberLog is what a member's directory holds of the raft log.
type memberLog struct {
	dir      string
	live     []raft.Log // what it would start from
	archived []raft.Log // what it removed from the front
}

// exported is what the raft logs of a cluster's members say.
type exported struct {
	requests  []model.EtcdRequest // in the order in which they were applied
	snapshots int                 // how often a member got a snapshot in place of entries
}

// exportLog returns the requests that the cluster applied, from the raft logs of its members
// (data directories) and of those that were members before.
func exportLog(now, before []string) (x exported, err error) {
	var current, past []memberLog
	for _, dir := range now {
		l, err := readMemberLog(dir)
		if err != nil {
			return x, err
		}
		current = append(current, l)
	}
	for _, dir := range before {
		// A member that was removed before it had written anything has no log.
		if l, err := readMemberLog(dir); err == nil {
			past = append(past, l)
		} else if !errors.Is(err, os.ErrNotExist) {
			return x, err
		}
	}
	for _, l := range slices.Concat(current, past) {
		x.snapshots += l.holes()
	}
	es, err := mergeLogs(current, past)
	if err != nil {
		return x, err
	}
	rs, err := raftfsm.Replay(es)
	if err != nil {
		return x, err
	}
	for _, r := range rs {
		m, err := modelRequest(r.Request)
		if err != nil {
			return x, fmt.Errorf("entry %d: %w", r.Index, err)
		}
		if m != nil {
			x.requests = append(x.requests, *m)
		}
	}
	return x, nil
}

// holes counts where entries are missing between those that the member had: it got a snapshot
// instead.
func (l memberLog) holes() int {
	var have []uint64
	for _, e := range slices.Concat(l.archived, l.live) {
		have = append(have, e.Index)
	}
	slices.Sort(have)
	n := 0
	for i := range have {
		if i > 0 && have[i] > have[i-1]+1 || i == 0 && have[0] > 1 {
			n++
		}
	}
	return n
}

func readMemberLog(dataDir string) (memberLog, error) {
	dir := filepath.Join(dataDir, "member")
	l := memberLog{dir: dataDir}
	var err error
	if l.live, err = raftfsm.ReadLog(dir); err != nil {
		return l, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "archive"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, err
	}
	for line := range bytes.Lines(b) {
		var e raft.Log
		if len(bytes.TrimSpace(line)) == 0 || json.Unmarshal(line, &e) != nil {
			continue // a kill cut the line off; then the entry was not removed either
		}
		l.archived = append(l.archived, e)
	}
	return l, nil
}

// mergeLogs puts together the log from its first entry. All members must have the same
// entries where they have any, as each has applied everything. What was removed can also hold
// entries that were never committed, where a snapshot replaced them; of several entries
// of one index the one with the highest term is the committed one, since whoever leads
// in a later term has all that is committed.
func mergeLogs(current, past []memberLog) ([]raft.Log, error) {
	type place struct{ index, term uint64 }
	seen := map[place]raft.Log{}
	best := map[uint64]raft.Log{}
	var last uint64
	for _, l := range current {
		for _, e := range l.live {
			if o, ok := best[e.Index]; ok && (o.Term != e.Term || !bytes.Equal(o.Data, e.Data)) {
				return nil, fmt.Errorf("the members' raft logs differ at entry %d: terms %d and %d (in %s)", e.Index, o.Term, e.Term, l.dir)
			}
			best[e.Index] = e
			seen[place{e.Index, e.Term}] = e
			last = max(last, e.Index)
		}
	}
	for _, l := range slices.Concat(current, past) {
		for _, e := range slices.Concat(l.archived, l.live) {
			at := place{e.Index, e.Term}
			if o, ok := seen[at]; ok && !bytes.Equal(o.Data, e.Data) {
				return nil, fmt.Errorf("two raft entries have index %d and term %d (in %s)", e.Index, e.Term, l.dir)
			}
			seen[at] = e
			if o, ok := best[e.Index]; !ok || e.Term > o.Term {
				best[e.Index] = e
			}
		}
	}
	var out []raft.Log
	for _, i := range slices.Sorted(maps.Keys(best)) {
		if i > last {
			break // never committed: no member has it
		}
		if i != uint64(len(out))+1 {
			return nil, fmt.Errorf("no member has entry %d of the raft log", len(out)+1)
		}
		out = append(out, best[i])
	}
	return out, nil
}
