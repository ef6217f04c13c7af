package raftfsm

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/hashicorp/raft-wal/types"
)

const segmentsFile = "segments.json"

// segmentList is raft-wal's list of segments in a sealed file.
type segmentList struct {
	files fileSystem
	path  string
}

var _ types.MetaStore = (*segmentList)(nil)

func newSegmentList(files fileSystem, dir string) *segmentList {
	return &segmentList{files: files, path: filepath.Join(dir, segmentsFile)}
}

// Load reads the list; it is empty when there is none yet.
func (l *segmentList) Load(string) (types.PersistentState, error) {
	var st types.PersistentState
	err := readSealed(l.path, &st)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return st, fmt.Errorf("%s, the list of the log's segments: %w", l.path, err)
	}
	return st, nil
}

// CommitState replaces the list.
func (l *segmentList) CommitState(st types.PersistentState) error {
	if err := writeSealed(l.files, l.path, st); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	return nil
}

var errNoStable = errors.New("the log keeps no other values")

// GetStable is part of raft-wal's interface, for those who keep the vote there.
func (l *segmentList) GetStable([]byte) ([]byte, error) { return nil, errNoStable }

// SetStable is part of raft-wal's interface.
func (l *segmentList) SetStable(_, _ []byte) error { return errNoStable }

// Close has nothing to close.
func (l *segmentList) Close() error { return nil }
