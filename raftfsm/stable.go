package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// Keys of hashicorp/raft (raft.go: keyCurrentTerm and so on), and ours.
const (
	keyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
	keyVote         = "Vote" // term, 8 bytes big endian, then the candidate's address
)

// errNotFound must have exactly this text: raft compares it.
var errNotFound = errors.New("not found")

// voteStore is a raft.StableStore that makes the two writes of one vote a single one.
//
// raft persists a vote as SetUint64(LastVoteTerm) and then Set(LastVoteCand). A crash
// between them leaves the new term beside an old candidate, who would then be granted
// a vote that no log comparison was made for. Here the first call is only remembered and the
// second writes both under one key. It also refuses to lower the persisted term: raft
// would have to have lost an update between its main loop and the heartbeat path.
type voteStore struct {
	raft.StableStore
	fatal func(error)

	mu          sync.Mutex
	pendingTerm uint64
	term        uint64
	termKnown   bool
}

func newVoteStore(s raft.StableStore, fatal func(error)) *voteStore {
	return &voteStore{StableStore: s, fatal: fatal}
}

func (v *voteStore) SetUint64(key []byte, val uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch string(key) {
	case keyLastVoteTerm:
		v.pendingTerm = val
		return nil
	case keyCurrentTerm:
		if !v.termKnown {
			t, err := v.StableStore.GetUint64(key)
			if err != nil && err.Error() != errNotFound.Error() {
				return fmt.Errorf("read the persisted term: %w", err)
			}
			v.term, v.termKnown = t, true
		}
		if val == v.term {
			return nil // raft writes it again at every start
		}
		if val < v.term {
			// raft panics on an error here, which is the right end.
			err := fmt.Errorf("refusing to set the raft term back from %d to %d: restart this peer", v.term, val)
			v.fatal(err)
			return err
		}
		if err := v.StableStore.SetUint64(key, val); err != nil {
			err = fmt.Errorf("persist raft term %d (raft cannot go on without; check the disk): %w", val, err)
			v.fatal(err)
			return err
		}
		v.term = val
		return nil
	}
	return v.StableStore.SetUint64(key, val)
}

func (v *voteStore) Set(key, val []byte) error {
	if string(key) != keyLastVoteCand {
		return v.StableStore.Set(key, val)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pendingTerm == 0 {
		return errors.New("raft stored a candidate without the term of the vote: this build does not know its raft library")
	}
	b := binary.BigEndian.AppendUint64(nil, v.pendingTerm)
	v.pendingTerm = 0
	return v.StableStore.Set([]byte(keyVote), append(b, val...))
}

func (v *voteStore) vote() (term uint64, cand []byte, err error) {
	b, err := v.StableStore.Get([]byte(keyVote))
	if err != nil {
		return 0, nil, err
	}
	if len(b) < 8 {
		return 0, nil, fmt.Errorf("the persisted vote is damaged (%d bytes): remove this peer from the cluster and join it again with an empty directory", len(b))
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}

func (v *voteStore) Get(key []byte) ([]byte, error) {
	if string(key) == keyLastVoteCand {
		_, cand, err := v.vote()
		return cand, err
	}
	return v.StableStore.Get(key)
}

func (v *voteStore) GetUint64(key []byte) (uint64, error) {
	if string(key) == keyLastVoteTerm {
		term, _, err := v.vote()
		return term, err
	}
	return v.StableStore.GetUint64(key)
}
