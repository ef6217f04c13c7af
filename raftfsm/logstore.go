package raftfsm

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

const segmentBytes = 16 << 20

// walLog is the raft log on disk: HashiCorp's raft-wal, reopened after a failed
// append. raft-wal keeps the remains of a failed append in memory and refuses every
// later one ("non-monotonic"): it is reopened then, so that a disk that was full needs no
// restart. What it cannot reopen by itself, see mendSegments, is put in order first.
type walLog struct {
	dir     string
	segment int // bytes
	hlog    hclog.Logger
	log     *slog.Logger

	mu     sync.RWMutex // write-held while the files are swapped
	w      *wal.WAL
	files  fileSystem
	vfs    *namedFS
	rot    *rotations
	last   uint64 // atomic: last index whose append was acknowledged
	cut    uint64 // the end of the log from here on is being removed, and may be gone or not; 0 for none
	broken bool
	closed bool
}

// namedFS remembers the last file opened, so that an error of the log can name it.
type namedFS struct {
	types.VFS
	last atomic.Pointer[string]
}

func (f *namedFS) note(dir, name string) { p := filepath.Join(dir, name); f.last.Store(&p) }
func (f *namedFS) name() string {
	if p := f.last.Load(); p != nil {
		return *p
	}
	return "its metadata file"
}
func (f *namedFS) OpenReader(dir, name string) (types.ReadableFile, error) {
	f.note(dir, name)
	return f.VFS.OpenReader(dir, name)
}
func (f *namedFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	f.note(dir, name)
	return f.VFS.OpenWriter(dir, name)
}
func (f *namedFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f.note(dir, name)
	return f.VFS.Create(dir, name, size)
}

func openWAL(dir string, files fileSystem, segment int, hlog hclog.Logger, log *slog.Logger) (*walLog, error) {
	l := &walLog{dir: dir, files: files, vfs: &namedFS{VFS: files}, segment: segment, hlog: hlog, log: log}
	if err := l.open(); err != nil {
		return nil, err
	}
	last, err := l.w.LastIndex()
	if err != nil {
		l.close()
		return nil, fmt.Errorf("read the raft log in %s: %w", dir, err)
	}
	l.last = last
	return l, nil
}

// open opens the files. When it fails, what was open before stays in use for reading.
func (l *walLog) open() error {
	meta := newSegmentList(l.files, l.dir, l.log)
	fail := func(err error) error {
		if errors.Is(err, wal.ErrCorrupt) || errors.Is(err, errDamaged) {
			return fmt.Errorf("the raft log is damaged (last file: %s): %w; the other peers have the data: remove this peer from the cluster, empty its directory and join it again", l.vfs.name(), err)
		}
		return fmt.Errorf("open the raft log in %s (last file: %s): %w", l.dir, l.vfs.name(), err)
	}
	st, err := meta.Load(l.dir)
	if err == nil {
		err = verifySegments(l.files, l.dir, st)
	}
	if err != nil {
		return fail(err)
	}
	filer := segment.NewFiler(l.dir, l.vfs)
	if err := l.mendSegments(meta, filer); err != nil {
		return fail(err)
	}
	rot := newRotations()
	w, err := wal.Open(l.dir, wal.WithLogger(l.hlog), wal.WithSegmentSize(l.segment), wal.WithMetaStore(meta),
		wal.WithSegmentFiler(watchedFiler{filer, rot}), wal.WithMetricsCollector(rot))
	if err != nil {
		return fail(err)
	}
	if l.w != nil {
		l.w.Close()
	}
	l.w, l.rot = w, rot
	return nil
}

func (l *walLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return l.w.Close()
}

// mend reopens the files after a failed write, and drops what of an append reached them, or what a removal left.
// Called with mu write-held.
func (l *walLog) mend() error {
	if l.closed {
		return wal.ErrClosed
	}
	if err := l.open(); err != nil {
		return err
	}
	first, err := l.w.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.w.LastIndex()
	if err != nil {
		return err
	}
	// What must be there, and what must not.
	keep := l.last
	if l.cut != 0 {
		keep = min(keep, l.cut-1)
	}
	gone := l.cut != 0 && last == 0 && (first == 0 || l.cut <= first) // all of it
	if last < keep && !gone {
		return fmt.Errorf("the raft log in %s ends at %d after reopening, but %d was acknowledged: the disk lost data", l.dir, last, keep)
	}
	if last > keep {
		if err := l.w.DeleteRange(keep+1, last); err != nil {
			return err
		}
	}
	if l.cut != 0 {
		if keep, err = l.w.LastIndex(); err != nil {
			return err
		}
		atomic.StoreUint64(&l.last, keep)
		l.cut = 0
	}
	l.broken = false
	l.log.Info("the raft log was reopened after a failed write", "dir", l.dir, "lastIndex", keep)
	return nil
}

// write runs fn on a log that is in order, and marks it broken when fn fails.
func (l *walLog) write(fn func(*wal.WAL) error) error {
	l.mu.RLock()
	if !l.broken {
		err := fn(l.w)
		l.mu.RUnlock()
		if err != nil {
			l.mu.Lock()
			l.broken = true
			l.mu.Unlock()
		}
		return err
	}
	l.mu.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.mend(); err != nil {
		l.broken = true
		return err
	}
	if err := fn(l.w); err != nil {
		l.broken = true
		return err
	}
	return nil
}

func (l *walLog) read(fn func(*wal.WAL) error) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return fn(l.w)
}

func (l *walLog) FirstIndex() (i uint64, err error) {
	err = l.read(func(w *wal.WAL) error { i, err = w.FirstIndex(); return err })
	return i, err
}

// LastIndex is the last acknowledged index: what a failed append left behind is not told.
func (l *walLog) LastIndex() (i uint64, err error) {
	err = l.read(func(w *wal.WAL) error {
		i, err = w.LastIndex()
		i = min(i, atomic.LoadUint64(&l.last))
		return err
	})
	return i, err
}

func (l *walLog) GetLog(i uint64, out *raft.Log) error {
	return l.read(func(w *wal.WAL) error { return w.GetLog(i, out) })
}

func (l *walLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l *walLog) StoreLogs(es []*raft.Log) error {
	if len(es) == 0 {
		return nil
	}
	err := l.write(func(w *wal.WAL) error { return w.StoreLogs(es) })
	if errors.Is(err, wal.ErrSealed) {
		// The rotation that follows the last append failed in the background. Nothing was
		// written: mend and try once more.
		err = l.write(func(w *wal.WAL) error { return w.StoreLogs(es) })
	}
	if err != nil {
		return err
	}
	atomic.StoreUint64(&l.last, es[len(es)-1].Index)
	return nil
}

// DeleteRange removes entries from an end of the log. When it fails they are all there, and can be read; a removal that
// reached the disk although it was said to have failed, as one does that finds no room for the next segment, succeeds.
func (l *walLog) DeleteRange(lo, hi uint64) error {
	last := atomic.LoadUint64(&l.last)
	if lo > last {
		return nil
	}
	remove := func(w *wal.WAL) error {
		if err := l.rot.settle(); err != nil {
			return err
		}
		return w.DeleteRange(lo, hi)
	}
	err := l.write(remove)
	if hi < last {
		return err
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cut = lo
		if l.mend() != nil {
			l.broken = true
			return err
		}
		return nil
	}
	now := lo - 1
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if first == 0 {
		now = 0
	}
	atomic.StoreUint64(&l.last, now)
	return nil
}

// IsMonotonic tells raft that the log has no holes: it is emptied when a snapshot is
// installed.
func (l *walLog) IsMonotonic() bool { return true }

const (
	cacheEntries = 512
	cacheBytes   = 16 << 20
)

// logStore is what raft sees: the log on disk, watched, counted, and with its newest
// entries in memory (a leader reads what it just wrote once per follower, and a
// follower reads it back to apply it).
type logStore struct {
	raft.LogStore
	disk  *diskWatch
	fatal func(error)
	// appended is told how long each append to the disk took.
	appended func(time.Duration)

	// written counts bytes of entries since the last call of resetWritten.
	written atomic.Int64
	// noSpace is set while the last append failed for want of space.
	noSpace atomic.Bool
	// cut is set from the removal of a suffix until an append succeeds.
	cut atomic.Bool

	// leading tells whether raft leads, so that what it appends may be written while it is replicated; see ahead.go.
	leading func() bool
	// onFailed is called, on a goroutine of its own, when such a write failed.
	onFailed func()
	volatile atomic.Uint64 // index of the first unwritten entry, 0 for none; changes with mu held

	mu    sync.Mutex
	ring  [cacheEntries]*raft.Log
	first uint64 // lowest index in the ring; the ring holds [first, next)
	next  uint64
	bytes int

	unwritten      []*raft.Log // accepted and not yet on disk, in order
	unwrittenBytes int
	writing        bool
	failed         error // of the last write
	failures       uint64
	closed, gaveUp bool
	moved          sync.Cond // any of these changed
}

func newLogStore(on raft.LogStore, disk *diskWatch, fatal func(error)) *logStore {
	s := &logStore{LogStore: on, disk: disk, fatal: fatal, leading: func() bool { return false }, appended: func(time.Duration) {}}
	s.moved.L = &s.mu
	return s
}

// IsMonotonic tells raft that the log has no holes.
func (s *logStore) IsMonotonic() bool { return true }

func (s *logStore) GetLog(i uint64, out *raft.Log) error {
	s.mu.Lock()
	if i >= s.first && i < s.next {
		if e := s.ring[i%cacheEntries]; e != nil && e.Index == i {
			*out = *e
			s.mu.Unlock()
			return nil
		}
	}
	if n := len(s.unwritten); n > 0 && i >= s.unwritten[0].Index && i-s.unwritten[0].Index < uint64(n) {
		*out = *s.unwritten[i-s.unwritten[0].Index]
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	return s.LogStore.GetLog(i, out)
}

// LastIndex counts what was accepted and is not yet written.
func (s *logStore) LastIndex() (uint64, error) {
	s.mu.Lock()
	if n := len(s.unwritten); n > 0 {
		defer s.mu.Unlock()
		return s.unwritten[n-1].Index, nil
	}
	s.mu.Unlock()
	return s.LogStore.LastIndex()
}

func (s *logStore) StoreLog(e *raft.Log) error { return s.StoreLogs([]*raft.Log{e}) }

func (s *logStore) StoreLogs(es []*raft.Log) error {
	if len(es) == 0 {
		return nil
	}
	if s.leading() && commandsOnly(es) {
		return s.accept(es)
	}
	if err := s.settle(math.MaxUint64); err != nil {
		return err
	}
	if err := s.append(es); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range es {
		s.put(e)
	}
	return nil
}

// append writes es to the disk.
func (s *logStore) append(es []*raft.Log) error {
	end := s.disk.begin("append to the raft log")
	began := time.Now()
	err := s.LogStore.StoreLogs(es)
	s.appended(time.Since(began))
	end()
	s.noSpace.Store(errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
	if err != nil {
		if s.cut.Load() {
			// raft still believes in the entries that it had just removed, and would
			// refuse the leader's for good (raft.go, appendEntries). A restart reads the truth.
			s.fatal(fmt.Errorf("append to the raft log, right after entries were removed from its end: %w; start this peer again", err))
		}
		if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EROFS) {
			// After a failed fsync the kernel may have dropped the data: nothing read back
			// can be trusted. Let others lead.
			s.fatal(fmt.Errorf("append to the raft log: %w; check the disk and the kernel log, then start this peer again", err))
		}
		return fmt.Errorf("append to the raft log: %w", err)
	}
	s.cut.Store(false)
	n := 0
	for _, e := range es {
		n += len(e.Data)
	}
	s.written.Add(int64(n))
	return nil
}

// put adds a copy of e to the ring and returns it. Called with mu held.
func (s *logStore) put(e *raft.Log) *raft.Log {
	if e.Index != s.next {
		s.clear()
		s.first = e.Index
	}
	c := *e // raft goes on to use its own copy
	s.ring[e.Index%cacheEntries] = &c
	s.next = e.Index + 1
	s.bytes += len(e.Data)
	for s.next-s.first > cacheEntries-1 || (s.bytes > cacheBytes && s.next-s.first > 1) {
		old := &s.ring[s.first%cacheEntries]
		s.bytes -= len((*old).Data)
		*old = nil
		s.first++
	}
	return &c
}

func (s *logStore) clear() {
	clear(s.ring[:])
	s.first, s.next, s.bytes = 0, 0, 0
}

func (s *logStore) DeleteRange(lo, hi uint64) error {
	if err := s.settle(hi); err != nil {
		return err
	}
	s.mu.Lock()
	if hi+1 >= s.next || lo >= s.first {
		s.clear()
	}
	s.mu.Unlock()
	end := s.disk.begin("truncate the raft log")
	defer end()
	if first, err := s.LogStore.FirstIndex(); err == nil && lo > first {
		s.cut.Store(true)
	}
	if err := s.LogStore.DeleteRange(lo, hi); err != nil {
		return fmt.Errorf("truncate the raft log: %w", err)
	}
	return nil
}
