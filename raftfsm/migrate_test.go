package raftfsm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/hashicorp/raft-wal/metadb"
)

// A directory of an older version, with term, vote and segments in key-value files, is taken over with all that it
// says, also when the first attempt was cut off before the old files were removed.
func TestFilesOfAnOlderVersionAreTakenOver(t *testing.T) {
	c := newCluster(t, 1, nil)
	p := c.peers[0]
	p.put(t, "a", "1")
	c.stop(p)
	dir, files := p.cfg.Dir, newOSFiles()
	s, err := openStable(files, dir, quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	list := newSegmentList(files, filepath.Join(dir, walDir), quiet(t))
	st, err := list.Load("")
	if err != nil || len(st.Segments) == 0 {
		t.Fatal(st, err)
	}
	for _, cutOff := range []bool{false, true} {
		bolt, err := raftboltdb.NewBoltStore(filepath.Join(dir, oldStableFile))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range s.values {
			if err := bolt.Set([]byte(k), v); err != nil {
				t.Fatal(err)
			}
		}
		if err := bolt.Close(); err != nil {
			t.Fatal(err)
		}
		old := &metadb.BoltMetaDB{}
		if _, err := old.Load(filepath.Join(dir, walDir)); err != nil {
			t.Fatal(err)
		}
		if err := old.CommitState(st); err != nil {
			t.Fatal(err)
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		if !cutOff {
			for _, f := range []string{s.file.path, list.file.path} {
				if err := errors.Join(os.Remove(f), os.Remove(f+secondCopy)); err != nil {
					t.Fatal(err)
				}
			}
		}
		term := s.values[keyCurrentTerm]
		c.start(p)
		if err := p.ReadIndex(c.ctx()); err != nil {
			t.Fatal(err)
		}
		if p.get(t, "a") != "1" || p.raft.CurrentTerm() <= uint64(term[7]) {
			t.Fatalf("a = %q in term %d, after term %d", p.get(t, "a"), p.raft.CurrentTerm(), term)
		}
		c.stop(p)
		for _, f := range []string{filepath.Join(dir, oldStableFile), filepath.Join(dir, walDir, metadb.FileName)} {
			if _, err := os.Stat(f); !os.IsNotExist(err) {
				t.Errorf("%s is still there: %v", f, err)
			}
		}
		if s, err = openStable(files, dir, quiet(t)); err != nil {
			t.Fatal(err)
		}
		if st, err = list.Load(""); err != nil {
			t.Fatal(err)
		}
	}
}
