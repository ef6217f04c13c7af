package raftfsm

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// crashStable is a stable store whose process dies before the write number n.
type crashStable struct {
	raft.StableStore
	left int
}

var errCrash = errors.New("the process is gone")

func (c *crashStable) Set(k, v []byte) error {
	if c.left--; c.left < 0 {
		return errCrash
	}
	return c.StableStore.Set(k, v)
}

func (c *crashStable) SetUint64(k []byte, v uint64) error {
	if c.left--; c.left < 0 {
		return errCrash
	}
	return c.StableStore.SetUint64(k, v)
}

// Wherever a crash cuts the two calls by which raft stores a vote, what is read afterwards is the old vote or the
// new one, never the new term with the old candidate.
func TestVoteIsAtomic(t *testing.T) {
	for crashAt := range 3 {
		disk := raft.NewInmemStore()
		persist := func(s *voteStore, term uint64, cand string) error { // as raft.persistVote does
			if err := s.SetUint64([]byte(keyLastVoteTerm), term); err != nil {
				return err
			}
			return s.Set([]byte(keyLastVoteCand), []byte(cand))
		}
		noFatal := func(err error) { t.Error(err) }
		if err := persist(newVoteStore(disk, noFatal), 1, "old"); err != nil {
			t.Fatal(err)
		}
		err := persist(newVoteStore(&crashStable{disk, crashAt}, noFatal), 2, "new")
		if crashAt == 0 && !errors.Is(err, errCrash) {
			t.Fatalf("a vote that was not written was acknowledged: %v", err)
		}
		again := newVoteStore(disk, noFatal)
		term, err := again.GetUint64([]byte(keyLastVoteTerm))
		if err != nil {
			t.Fatal(err)
		}
		cand, err := again.Get([]byte(keyLastVoteCand))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(cand); !(term == 1 && got == "old" || term == 2 && got == "new") {
			t.Fatalf("crash before write %d: term %d with candidate %q", crashAt, term, got)
		}
	}
}

func TestPersistedTermNeverGoesBack(t *testing.T) {
	var fatal error
	s := newVoteStore(raft.NewInmemStore(), func(err error) { fatal = err })
	key := []byte(keyCurrentTerm)
	for _, term := range []uint64{3, 3, 5} {
		if err := s.SetUint64(key, term); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetUint64(key, 4); err == nil || fatal == nil {
		t.Fatal("the term went back")
	}
	if got, err := s.GetUint64(key); err != nil || got != 5 {
		t.Fatalf("term %d, %v", got, err)
	}
}

func TestUnsetVoteIsNotFoundInRaftsWords(t *testing.T) {
	s := newVoteStore(raft.NewInmemStore(), func(error) {})
	if _, err := s.GetUint64([]byte(keyLastVoteTerm)); err == nil || err.Error() != "not found" {
		t.Fatalf("raft compares this text: %v", err)
	}
	if _, err := s.Get([]byte(keyLastVoteCand)); err == nil || err.Error() != "not found" {
		t.Fatalf("raft compares this text: %v", err)
	}
}
