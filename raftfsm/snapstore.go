package raftfsm

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

const (
	snapshotDir   = "snapshots"
	snapMetaFile  = "meta.json"
	snapStateFile = "state.bin"
	tmpSuffix     = ".tmp"
	keepSnaps     = 2
)

// snapStore keeps snapshots as raft.FileSnapshotStore lays them out, a directory each,
// with a checksum over what says of which index and configuration they are.
type snapStore struct {
	files fileSystem
	dir   string
	log   *slog.Logger

	mu  sync.Mutex
	bad map[string]error // found damaged: not offered, and the first to be removed
}

var _ raft.SnapshotStore = (*snapStore)(nil)

// snapMeta is the sealed content of snapMetaFile. Sum is the CRC-32C of the state; nil in
// one of an older version.
type snapMeta struct {
	raft.SnapshotMeta
	Sum *uint32 `json:",omitempty"`
}

// openSnapshots opens the snapshots below the raft directory dir, and removes what one
// that was cut off left behind.
func openSnapshots(files fileSystem, dir string, log *slog.Logger) (*snapStore, error) {
	s := &snapStore{files: files, dir: filepath.Join(dir, snapshotDir), log: log, bad: map[string]error{}}
	if err := makeDir(files, s.dir); err != nil {
		return nil, fmt.Errorf("make %s: %w", s.dir, err)
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "*"+tmpSuffix))
	for _, p := range left {
		if err := files.RemoveAll(p); err != nil {
			log.Warn("cannot remove an unfinished snapshot", "path", p, "error", err)
		}
	}
	return s, err
}

func (s *snapStore) read(id string) (snapMeta, error) {
	var m snapMeta
	path := filepath.Join(s.dir, id, snapMetaFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}
	if _, err := unseal(b, &m); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	if m.ID != id || m.Version != raft.SnapshotVersionMax || m.Index == 0 {
		return m, fmt.Errorf("%s: %w: it is of snapshot %s, version %d, index %d", path, errDamaged, m.ID, m.Version, m.Index)
	}
	st, err := os.Stat(s.statePath(id))
	if err != nil {
		return m, err
	}
	if st.Size() != m.Size {
		return m, fmt.Errorf("%s: %w: it has %d bytes, not %d", s.statePath(id), errDamaged, st.Size(), m.Size)
	}
	return m, nil
}

func (s *snapStore) statePath(id string) string { return filepath.Join(s.dir, id, snapStateFile) }

// List returns the snapshots that can be read, newest first.
func (s *snapStore) List() ([]*raft.SnapshotMeta, error) {
	dirs, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*raft.SnapshotMeta
	for _, d := range dirs {
		id := d.Name()
		if !d.IsDir() || strings.HasSuffix(id, tmpSuffix) || s.bad[id] != nil {
			continue
		}
		m, err := s.read(id)
		if err != nil {
			s.blame(id, err)
			continue
		}
		out = append(out, &m.SnapshotMeta)
	}
	slices.SortFunc(out, func(a, b *raft.SnapshotMeta) int { return compareSnapshots(b, a) })
	return out, nil
}

func compareSnapshots(a, b *raft.SnapshotMeta) int {
	for _, c := range [][2]uint64{{a.Term, b.Term}, {a.Index, b.Index}} {
		if c[0] != c[1] {
			if c[0] < c[1] {
				return -1
			}
			return 1
		}
	}
	return strings.Compare(a.ID, b.ID)
}

// blame keeps a damaged snapshot from being offered. Called with mu held.
func (s *snapStore) blame(id string, err error) {
	s.bad[id] = err
	s.log.Error("a snapshot is damaged", "snapshot", id, "error", err)
}

// damaged notes what its reader found.
func (s *snapStore) damaged(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blame(id, fmt.Errorf("%s: %w", s.statePath(id), err))
}

// damagedAfter returns the last index that damaged snapshots newer than index reach to, and what is wrong with
// them; 0 when there are none.
func (s *snapStore) damagedAfter(index uint64) (last uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.Sorted(maps.Keys(s.bad))
	var errs []error
	for _, id := range ids {
		var term, at uint64
		if _, serr := fmt.Sscanf(id, "%d-%d-", &term, &at); serr == nil && at > index {
			last = max(last, at)
			errs = append(errs, s.bad[id])
		}
	}
	return last, errors.Join(errs...)
}

// Open checks a snapshot and opens its state.
func (s *snapStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, f, err := s.open(id)
	if err != nil || m.Sum == nil {
		return &m.SnapshotMeta, f, err
	}
	sum := crc32.New(castagnoli)
	_, err = io.CopyBuffer(sum, onlyReader{f}, make([]byte, 1<<20))
	if err == nil && sum.Sum32() != *m.Sum {
		err = fmt.Errorf("%w: its checksum is %08x, not %08x", errDamaged, sum.Sum32(), *m.Sum)
		s.damaged(id, err)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read %s: %w", s.statePath(id), err)
	}
	return &m.SnapshotMeta, f, nil
}

type onlyReader struct{ io.Reader }

// open opens the state for a reader that checks it by itself.
func (s *snapStore) open(id string) (snapMeta, *os.File, error) {
	m, err := s.read(id)
	if err != nil {
		return m, nil, err
	}
	f, err := os.Open(s.statePath(id))
	return m, f, err
}

// Create begins a snapshot.
func (s *snapStore) Create(v raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if v != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("snapshot version %d is not known", v)
	}
	id := fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixMilli())
	k := &snapSink{s: s, tmp: filepath.Join(s.dir, id+tmpSuffix), meta: snapMeta{SnapshotMeta: raft.SnapshotMeta{
		Version: v, ID: id, Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
	}}}
	if err := s.files.RemoveAll(k.tmp); err != nil {
		return nil, err
	}
	if err := s.files.MkdirAll(k.tmp); err != nil {
		return nil, err
	}
	f, err := s.files.Create(k.tmp, snapStateFile, 0)
	if err != nil {
		return nil, err
	}
	k.f, k.w = f, bufio.NewWriterSize(io.NewOffsetWriter(f, 0), 256<<10)
	return k, nil
}

// reap removes all but the newest snapshots, and those that are damaged.
func (s *snapStore) reap() {
	list, err := s.List()
	if err != nil {
		s.log.Warn("cannot list the snapshots", "error", err)
		return
	}
	var ids []string
	for _, m := range list[min(keepSnaps, len(list)):] {
		ids = append(ids, m.ID)
	}
	s.mu.Lock()
	for id := range s.bad { // order does not matter: all of them go
		ids = append(ids, id)
	}
	clear(s.bad)
	s.mu.Unlock()
	for _, id := range ids {
		if err := s.files.RemoveAll(filepath.Join(s.dir, id)); err != nil {
			s.log.Warn("cannot remove an old snapshot", "snapshot", id, "error", err)
		}
	}
}

// snapSink takes one snapshot in.
type snapSink struct {
	s    *snapStore
	tmp  string
	meta snapMeta
	f    types.WritableFile
	w    *bufio.Writer
	sum  uint32
	over bool
}

// ID names the snapshot.
func (k *snapSink) ID() string { return k.meta.ID }

// Write appends to the state.
func (k *snapSink) Write(b []byte) (int, error) {
	n, err := k.w.Write(b)
	k.sum = crc32.Update(k.sum, castagnoli, b[:n])
	k.meta.Size += int64(n)
	return n, err
}

// Close makes the snapshot durable and then known; on an error nothing of it stays.
func (k *snapSink) Close() error {
	if k.over {
		return nil
	}
	k.over = true
	err := k.w.Flush()
	if err == nil {
		err = k.f.Sync()
	}
	if cerr := k.f.Close(); err == nil {
		err = cerr
	}
	k.meta.Sum = &k.sum
	var meta []byte
	if err == nil {
		meta, err = seal(k.meta, 1)
	}
	if err == nil {
		err = replaceFile(k.s.files, filepath.Join(k.tmp, snapMetaFile), meta)
	}
	if err == nil {
		err = k.s.files.Rename(k.tmp, strings.TrimSuffix(k.tmp, tmpSuffix))
	}
	if err == nil {
		err = k.s.files.SyncDir(k.s.dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write snapshot %s: %w", k.meta.ID, err), k.s.files.RemoveAll(k.tmp))
	}
	k.s.reap()
	return nil
}

// Cancel removes what was written.
func (k *snapSink) Cancel() error {
	if k.over {
		return nil
	}
	k.over = true
	return errors.Join(k.f.Close(), k.s.files.RemoveAll(k.tmp))
}
