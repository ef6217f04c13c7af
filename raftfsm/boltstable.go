package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	boltFile = "stable.db"
	// keyBoltSum is where the sealed file keeps the CRC-32C of the whole bolt file.
	keyBoltSum = "BoltSum"
)

// boltStable is raft's stable store: raft-boltdb, and beside it the sealed file, which
// holds the same values and the checksum of the bolt file as it was last written.
//
// A bolt file alone is not enough: a changed byte in it goes unseen, takes an older vote
// for the newest in silence, or ends the process while it is read. So it is opened only
// when it is, byte for byte, what was written last; else it is made anew from the sealed
// file, to which every acknowledged value was written as well.
type boltStable struct {
	*stableFile // answers reads
	log         *slog.Logger
	path        string

	mu   sync.Mutex
	bolt *raftboltdb.BoltStore // nil after it could not be written
}

var _ raft.StableStore = (*boltStable)(nil)

// openBoltStable opens the store in dir, or starts an empty one.
func openBoltStable(files fileSystem, dir string, log *slog.Logger) (*boltStable, error) {
	sealed, err := openStable(files, dir, log)
	if err != nil {
		return nil, err
	}
	s := &boltStable{stableFile: sealed, log: log, path: filepath.Join(dir, boltFile)}
	sum, err := s.sum()
	switch want, ok := sealed.values[keyBoltSum]; {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the raft term and vote: %w", err)
	case !ok || string(want) != string(sum):
		log.Warn("the file of the raft term and vote is not as it was last written: it is made anew from the sealed copies; after anything but a crash, check the disk", "path", s.path)
		if err := os.Remove(s.path); err != nil {
			return nil, fmt.Errorf("remove %s, to make it anew: %w", s.path, err)
		}
	}
	s.bolt, err = raftboltdb.New(raftboltdb.Options{Path: s.path, BoltOptions: &bbolt.Options{Timeout: time.Second}})
	if err != nil {
		return nil, fmt.Errorf("open %s, which holds the raft term and vote: %w", s.path, err)
	}
	for k, v := range sealed.values { // in any order: each key is its own
		if k == keyBoltSum {
			continue
		}
		if have, err := s.bolt.Get([]byte(k)); err == nil && string(have) == string(v) {
			continue
		}
		if err := s.bolt.Set([]byte(k), v); err != nil {
			s.close()
			return nil, fmt.Errorf("write %s: %w", s.path, err)
		}
	}
	if err := s.seal(sealed.values); err != nil { // opening a bolt file changes it
		s.close()
		return nil, err
	}
	return s, nil
}

// sum is the checksum of the bolt file.
func (s *boltStable) sum() ([]byte, error) {
	b, err := os.ReadFile(s.path)
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli)), nil
}

// seal makes values those of the sealed file, with the checksum of the bolt file.
func (s *boltStable) seal(values map[string][]byte) error {
	sum, err := s.sum()
	if err != nil {
		return fmt.Errorf("read back %s: %w", s.path, err)
	}
	values = maps.Clone(values)
	values[keyBoltSum] = sum
	return s.replace(values)
}

// Set writes both. A bolt file that cannot be written, on a full disk say, is left
// behind until the next start; the sealed file is written in place and goes on.
func (s *boltStable) Set(key, val []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bolt == nil {
		return s.stableFile.Set(key, val)
	}
	if err := s.bolt.Set(key, val); err != nil {
		s.log.Error("the raft term and vote go on in the sealed file alone until the next start: check the disk", "path", s.path, "error", err)
		s.bolt.Close()
		s.bolt = nil
		return s.stableFile.Set(key, val)
	}
	next := s.snapshot()
	next[string(key)] = append([]byte(nil), val...)
	return s.seal(next)
}

func (s *boltStable) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

func (s *boltStable) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bolt == nil {
		return nil
	}
	err := s.bolt.Close()
	s.bolt = nil
	return err
}
