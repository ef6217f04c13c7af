package linearizability

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

func entries(terms ...uint64) []raft.Log {
	var es []raft.Log
	for i, t := range terms {
		if t > 0 {
			es = append(es, raft.Log{Index: uint64(i + 1), Term: t, Data: []byte{byte(t)}})
		}
	}
	return es
}

// The whole log is found when each entry is somewhere; members that contradict each other are
// found out.
func TestMergeLogs(t *testing.T) {
	other := entries(1, 1, 2)
	other[1].Data = []byte("other")
	for _, c := range []struct {
		name    string
		current []memberLog
		past    []memberLog
		want    []uint64 // terms
		err     string
	}{
		{name: "all have all", current: []memberLog{{live: entries(1, 1, 2)}, {live: entries(1, 1, 2)}}, want: []uint64{1, 1, 2}},
		{name: "one is shorter", current: []memberLog{{live: entries(1, 1)}, {live: entries(1, 1, 2)}}, want: []uint64{1, 1, 2}},
		{name: "from archives", current: []memberLog{{live: entries(0, 0, 2), archived: entries(1)}, {live: entries(0, 1, 2)}}, want: []uint64{1, 1, 2}},
		{name: "a removed entry that was not committed", current: []memberLog{{live: entries(0, 0, 3), archived: entries(1, 1)}, {live: entries(0, 2, 3)}}, want: []uint64{1, 2, 3}},
		{name: "a former member has more", current: []memberLog{{live: entries(1, 1)}}, past: []memberLog{{live: entries(1, 1, 1)}}, want: []uint64{1, 1}},
		{name: "a hole", current: []memberLog{{live: entries(0, 0, 2), archived: entries(1)}}, err: "no member has entry 2"},
		{name: "members differ", current: []memberLog{{live: entries(1, 1)}, {live: entries(1, 2)}}, err: "differ at entry 2"},
		{name: "two entries in one place", current: []memberLog{{live: entries(1, 1, 2)}}, past: []memberLog{{live: other}}, err: "two raft entries have index 2"},
	} {
		got, err := mergeLogs(c.current, c.past)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.err)
			}
			continue
		}
		var terms []uint64
		for _, e := range got {
			terms = append(terms, e.Term)
		}
		if err != nil || !slices.Equal(terms, c.want) {
			t.Errorf("%s: terms %v, %v, want %v", c.name, terms, err, c.want)
		}
	}
}
