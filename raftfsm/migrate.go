package raftfsm

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"
)

// Files of versions up to 0.1.0~138, which kept term, vote and the list of segments in
// key-value files.
const (
	oldStableFile   = "raft.db"
	oldStableBucket = "conf"
)

// migrate moves a directory of an older version to the files of this one. It may be cut
// off anywhere and starts over.
func migrate(files fileSystem, dir string, log *slog.Logger) error {
	if err := migrateStable(files, dir, log); err != nil {
		return fmt.Errorf("take over the raft term and vote of an older version from %s: %w", filepath.Join(dir, oldStableFile), err)
	}
	wal := filepath.Join(dir, walDir)
	if err := migrateSegments(files, wal, log); err != nil {
		return fmt.Errorf("take over the segments of an older version from %s: %w", filepath.Join(wal, metadb.FileName), err)
	}
	return nil
}

func migrateStable(files fileSystem, dir string, log *slog.Logger) error {
	old := filepath.Join(dir, oldStableFile)
	if _, err := os.Stat(old); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s, err := openStable(files, dir, log)
	if err != nil {
		return err
	}
	if len(s.values) == 0 {
		db, err := bbolt.Open(old, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
		if err != nil {
			return err
		}
		defer db.Close()
		values := map[string][]byte{}
		err = db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(oldStableBucket))
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, v []byte) error { values[string(k)] = append([]byte(nil), v...); return nil })
		})
		if err != nil {
			return err
		}
		if err := s.file.store(values); err != nil {
			return err
		}
	}
	return files.Delete(dir, oldStableFile)
}

func migrateSegments(files fileSystem, dir string, log *slog.Logger) error {
	if _, err := os.Stat(filepath.Join(dir, metadb.FileName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, segmentsFile)); errors.Is(err, fs.ErrNotExist) {
		old := &metadb.BoltMetaDB{}
		defer old.Close()
		st, err := old.Load(dir)
		if err != nil {
			return err
		}
		if err := newSegmentList(files, dir, log).CommitState(st); err != nil {
			return err
		}
		old.Close()
	}
	return files.Delete(dir, metadb.FileName)
}
