package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"
)

const voteFile = "vote.json"

// stableFile is a raft.StableStore in a sealed file: a handful of values, written at
// elections only. See boltStable for what it stands beside.
type stableFile struct {
	mu     sync.Mutex
	file   sealedFile
	values map[string][]byte
}

var _ raft.StableStore = (*stableFile)(nil)

// openStable reads the store in dir, or starts an empty one.
func openStable(files fileSystem, dir string, log *slog.Logger) (*stableFile, error) {
	s := &stableFile{file: sealedFile{files: files, path: filepath.Join(dir, voteFile)}, values: map[string][]byte{}}
	err := s.file.load(&s.values, log)
	switch {
	case errors.Is(err, errDamaged):
		return nil, fmt.Errorf("%w; it holds the raft term and vote: this peer may have voted and must not vote again; remove it from the cluster, empty its directory and join it again", err)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the raft term and vote: %w", err)
	}
	return s, nil
}

func (s *stableFile) Set(key, val []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.values)
	next[string(key)] = append([]byte(nil), val...)
	return s.put(next)
}

// put makes next the values; mu is held.
func (s *stableFile) put(next map[string][]byte) error {
	if err := s.file.store(next); err != nil {
		return err
	}
	s.values = next
	return nil
}

// replace makes next the values.
func (s *stableFile) replace(next map[string][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(next)
}

// snapshot is a copy of the values.
func (s *stableFile) snapshot() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values)
}

func (s *stableFile) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return append([]byte(nil), v...), nil
}

func (s *stableFile) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

func (s *stableFile) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("%s: the value of %s has %d bytes, not 8", s.file.path, key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
