package raftfsm

import (
	"os"
	"path/filepath"
	"testing"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Whatever happens to the bolt file between two starts, the values are the last that
// were acknowledged, and the bolt file holds them again.
func TestBoltFileNeverGoesBack(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, s *boltStable, older []byte){
		"nothing": func(*testing.T, *boltStable, []byte) {},
		"gone": func(t *testing.T, s *boltStable, _ []byte) {
			if err := os.Remove(s.path); err != nil {
				t.Fatal(err)
			}
		},
		"an older one is back": func(t *testing.T, s *boltStable, older []byte) {
			if err := os.WriteFile(s.path, older, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"not a bolt file": func(t *testing.T, s *boltStable, _ []byte) {
			if err := os.WriteFile(s.path, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a page that points anywhere": func(t *testing.T, s *boltStable, older []byte) {
			b, err := os.ReadFile(s.path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 2 * os.Getpagesize(); i < len(b); i++ {
				b[i] ^= 0xff
			}
			if err := os.WriteFile(s.path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			open := func() *boltStable {
				s, err := openBoltStable(newOSFiles(), dir, quiet(t))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			s := open()
			set := func(term uint64) {
				if err := s.SetUint64([]byte(keyCurrentTerm), term); err != nil {
					t.Fatal(err)
				}
			}
			set(1)
			older, err := os.ReadFile(s.path)
			if err != nil {
				t.Fatal(err)
			}
			set(2)
			s.close()
			harm(t, s, older)
			s = open()
			if term, err := s.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 2 {
				t.Errorf("term %d, %v, want 2", term, err)
			}
			s.close()
			bolt, err := raftboltdb.NewBoltStore(filepath.Join(dir, boltFile))
			if err != nil {
				t.Fatal(err)
			}
			defer bolt.Close()
			if term, err := bolt.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 2 {
				t.Errorf("the bolt file holds term %d, %v, want 2", term, err)
			}
		})
	}
}

// A bolt file that cannot be written does not stop an election: the sealed file goes on,
// and the next start brings the bolt file up to it.
func TestBoltFileThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	s, err := openBoltStable(newOSFiles(), dir, quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	s.bolt.Close() // every write fails from here on
	for term := uint64(1); term < 3; term++ {
		if err := s.SetUint64([]byte(keyCurrentTerm), term); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = openBoltStable(newOSFiles(), dir, quiet(t)); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, from := range []interface {
		GetUint64([]byte) (uint64, error)
	}{s, s.bolt} {
		if term, err := from.GetUint64([]byte(keyCurrentTerm)); err != nil || term != 2 {
			t.Errorf("%T: term %d, %v, want 2", from, term, err)
		}
	}
}
