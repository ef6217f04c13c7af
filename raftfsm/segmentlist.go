package raftfsm

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/hashicorp/raft-wal/types"
)

const segmentsFile = "segments.json"

// segmentList is raft-wal's list of segments in a sealed file.
type segmentList struct {
	file sealedFile
	log  *slog.Logger
}

var _ types.MetaStore = (*segmentList)(nil)

func newSegmentList(files fileSystem, dir string, log *slog.Logger) *segmentList {
	return &segmentList{sealedFile{files: files, path: filepath.Join(dir, segmentsFile)}, log}
}

// Load reads the list; it is empty when there is none yet.
func (l *segmentList) Load(string) (types.PersistentState, error) {
	var st types.PersistentState
	err := l.file.load(&st, l.log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st, fmt.Errorf("the list of the log's segments: %w", err)
	}
	return st, nil
}

// CommitState replaces the list.
func (l *segmentList) CommitState(st types.PersistentState) error {
	return l.file.store(st)
}

var errNoStable = errors.New("the log keeps no other values")

// GetStable is part of raft-wal's interface, for those who keep the vote there.
func (l *segmentList) GetStable([]byte) ([]byte, error) { return nil, errNoStable }

// SetStable is part of raft-wal's interface.
func (l *segmentList) SetStable(_, _ []byte) error { return errNoStable }

// Close has nothing to close.
func (l *segmentList) Close() error { return nil }
