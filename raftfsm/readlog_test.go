package raftfsm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// The log of a stopped peer, replayed, is what its store holds; reading it changes no file.
func TestReadLogOfAStoppedPeer(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	for _, v := range []string{"1", "2", "3"} {
		p.put(t, "k", v)
	}
	want := dump(t, p.store)
	c.stop(p)

	files := func() map[string]string {
		out := map[string]string{}
		paths, err := filepath.Glob(filepath.Join(p.cfg.Dir, walDir, "*"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("the log's files: %v, %v", paths, err)
		}
		for _, f := range paths {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			out[f] = string(b)
		}
		return out
	}
	before := files()
	es, err := ReadLog(p.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	after := files()
	for f, b := range before {
		if after[f] != b {
			t.Errorf("%s changed", f)
		}
	}
	rs, err := Replay(es)
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Options{})
	for _, r := range rs {
		s.Apply(r.Request)
	}
	if !bytes.Equal(dump(t, s), want) {
		t.Errorf("%d requests replayed give another state", len(rs))
	}
}

// Replay applies a record once, none that is bound to a term that was over, and none of a
// removed peer.
func TestReplayAppliesAsPeersDo(t *testing.T) {
	request := func(peer PeerID, seq, term uint64, v string) record {
		b, err := proto.Marshal(putReq("k", v))
		if err != nil {
			t.Fatal(err)
		}
		return record{kind: recRequest, peer: peer, boot: 1, seq: seq, term: term, payload: b}
	}
	entry := func(index, term uint64, rs ...record) raft.Log {
		b := newEntry(0)
		for _, r := range rs {
			b = r.appendTo(b)
		}
		return raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: sealEntry(b)}
	}
	gone := record{kind: recMemberGone, peer: 1, boot: 1, seq: 4, payload: []byte(`{"id":2}`)}
	log := []raft.Log{
		{Index: 1, Term: 1, Type: raft.LogConfiguration},
		entry(2, 1, request(1, 1, 0, "a"), request(1, 2, 0, "b")),
		entry(3, 1, request(1, 2, 0, "again")),
		entry(4, 2, request(1, 3, 1, "too late"), request(2, 1, 0, "c")),
		entry(5, 2, gone, request(2, 2, 0, "removed")),
	}
	rs, err := Replay(log)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range rs {
		got += string(r.Request.Put.Value)
	}
	if got != "abc" || rs[2].Index != 4 {
		t.Errorf("replayed %q", got)
	}
	if _, err := Replay(log[1:]); err == nil {
		t.Error("a log without its beginning was replayed")
	}
	log[2].Data[7] ^= 1
	if _, err := Replay(log); err == nil {
		t.Error("a damaged entry was replayed")
	}
}
