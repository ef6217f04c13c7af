package raftfsm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

var errIO error = syscall.EIO

func entries(from, to uint64, size int) []*raft.Log {
	var es []*raft.Log
	for i := from; i <= to; i++ {
		es = append(es, &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: fmt.Appendf(make([]byte, 0, size+10), "%0*d", size, i)})
	}
	return es
}

func openTestWAL(t *testing.T, dir string) *walLog {
	t.Helper()
	return openTestWALOn(t, dir, newOSFiles(), segmentBytes)
}

func openTestWALOn(t testing.TB, dir string, files fileSystem, segment int) *walLog {
	t.Helper()
	w, err := openWAL(dir, files, segment, newHLog(quiet(t), "wal"), quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.close() })
	return w
}

func (l *walLog) check(t *testing.T, last uint64) {
	t.Helper()
	if got, err := l.LastIndex(); err != nil || got != last {
		t.Fatalf("last index %d, %v; want %d", got, err, last)
	}
	first, err := l.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := first; i <= last && last > 0; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil || e.Index != i {
			t.Fatalf("entry %d: %v, %d", i, err, e.Index)
		}
	}
}

// fullFS fails writes while it is full, after some of each write went through.
type fullFS struct {
	fileSystem
	full    atomic.Bool
	inPlace bool // what is there can be overwritten
}

type fullFile struct {
	types.WritableFile
	fs *fullFS
}

func (f *fullFS) wrap(w types.WritableFile, err error) (types.WritableFile, error) {
	if err != nil {
		return nil, err
	}
	return &fullFile{w, f}, nil
}
func (f *fullFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if f.full.Load() {
		return nil, fmt.Errorf("create %s: %w", name, syscall.ENOSPC)
	}
	return f.wrap(f.fileSystem.Create(dir, name, size))
}
func (f *fullFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	return f.wrap(f.fileSystem.OpenWriter(dir, name))
}

func (f *fullFile) WriteAt(b []byte, off int64) (int, error) {
	if f.fs.full.Load() && !f.fs.inPlace {
		n, _ := f.WritableFile.WriteAt(b[:len(b)/2], off)
		return n, syscall.ENOSPC
	}
	return f.WritableFile.WriteAt(b, off)
}

// A full disk fails appends, loses nothing that was acknowledged, and appends go on once there is space, without a restart.
func TestLogGoesOnAfterAFullDisk(t *testing.T) {
	dir := t.TempDir()
	disk := &fullFS{fileSystem: newOSFiles()}
	w := openTestWALOn(t, dir, disk, segmentBytes)
	if err := w.StoreLogs(entries(1, 10, 100)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		disk.full.Store(true)
		for range 2 {
			last, err := w.LastIndex()
			if err != nil {
				t.Fatal(err)
			}
			if err := w.StoreLogs(entries(last+1, last+5, 100)); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("append on a full disk: %v", err)
			}
			w.check(t, last)
		}
		disk.full.Store(false)
		last, err := w.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.StoreLogs(entries(last+1, last+5, 100)); err != nil {
			t.Fatal(err)
		}
		w.check(t, last+5)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	openTestWAL(t, dir).check(t, 25)
}

// The disk is full when the log wants a new segment: raft-wal only logs that, and then refuses appends.
func TestLogGoesOnAfterAFailedRotation(t *testing.T) {
	dir := t.TempDir()
	disk := &fullFS{fileSystem: newOSFiles()}
	w := openTestWALOn(t, dir, disk, 64<<10)
	next := uint64(1)
	failed := 0
	for range 80 { // in segments of about 30 entries
		disk.full.Store(false)
		err := w.StoreLogs(entries(next, next, 2<<10))
		if err == nil {
			next++
			// Full exactly while the rotation that may follow is under way.
			disk.full.Store(true)
			continue
		}
		failed++
	}
	disk.full.Store(false)
	if err := w.StoreLogs(entries(next, next, 100)); err != nil {
		t.Fatal(err)
	}
	w.check(t, next)
	if failed > 10 {
		t.Errorf("%d appends failed although there was space", failed)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	openTestWAL(t, dir).check(t, next)
}

// The process ended after a segment was sealed and before the metadata said so; raft-wal 0.4.0 alone would refuse
// every append from then on.
func TestSealedTailIsTakenUp(t *testing.T) {
	dir := t.TempDir()
	w := openTestWALOn(t, dir, newOSFiles(), 64<<10)
	var next uint64 = 1
	for { // up to the first rotation
		if err := w.StoreLogs(entries(next, next, 2<<10)); err != nil {
			t.Fatal(err)
		}
		next++
		files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) > 1 {
			break
		}
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	// Take the rotation back in the metadata, as if it had not been reached.
	meta := newSegmentList(newOSFiles(), dir, quiet(t))
	st, err := meta.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st.Segments[1:] {
		if err := os.Remove(filepath.Join(dir, segment.FileName(s))); err != nil {
			t.Fatal(err)
		}
	}
	st.Segments = st.Segments[:1]
	tail := &st.Segments[0]
	last := tail.MaxIndex
	var zero types.SegmentInfo
	tail.SealTime, tail.MaxIndex, tail.IndexStart = zero.SealTime, 0, 0
	st.NextSegmentID = tail.ID + 1
	if err := meta.CommitState(st); err != nil {
		t.Fatal(err)
	}
	if err := meta.Close(); err != nil {
		t.Fatal(err)
	}
	w = openTestWAL(t, dir)
	w.check(t, last)
	if err := w.StoreLogs(entries(last+1, last+3, 100)); err != nil {
		t.Fatal(err)
	}
	w.check(t, last+3)
}

func TestLogStoreCache(t *testing.T) {
	w := openTestWAL(t, t.TempDir())
	s := newLogStore(w, &diskWatch{calls: map[uint64]diskCall{}, log: quiet(t)}, func(err error) { t.Error(err) })
	if err := s.StoreLogs(entries(1, 2000, 10)); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteRange(1990, 2000); err != nil {
		t.Fatal(err)
	}
	repl := entries(1990, 1995, 10)
	for _, e := range repl {
		e.Term = 7
	}
	if err := s.StoreLogs(repl); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteRange(1, 100); err != nil {
		t.Fatal(err)
	}
	for i := uint64(101); i <= 1995; i++ {
		var e raft.Log
		if err := s.GetLog(i, &e); err != nil || e.Index != i || (e.Term == 7) != (i >= 1990) {
			t.Fatalf("entry %d: %v, index %d, term %d", i, err, e.Index, e.Term)
		}
	}
	var e raft.Log
	for _, i := range []uint64{100, 1996} {
		if err := s.GetLog(i, &e); !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatalf("entry %d that is gone: %v", i, err)
		}
	}
	if err := s.StoreLogs(entries(1996, 2050, 1<<19)); err != nil {
		t.Fatal(err)
	}
	if s.bytes > cacheBytes+1<<19+10 {
		t.Errorf("the cache holds %d bytes", s.bytes)
	}
}

// Random appends, truncations at both ends, failures and reopenings against a slice: the log is what was
// acknowledged, always.
func TestLogAgainstModel(t *testing.T) {
	failed := 0 // removals on a full disk
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		dir := t.TempDir()
		disk := &fullFS{fileSystem: newOSFiles()}
		w := openTestWALOn(t, dir, disk, 8<<10)
		model := map[uint64]uint64{} // index to term
		var first, last, term uint64
		term = 1
		for step := range 150 {
			what := rnd.IntN(10)
			switch {
			case what < 5:
				n := uint64(1 + rnd.IntN(4))
				es := entries(last+1, last+n, rnd.IntN(3000))
				for _, e := range es {
					e.Term = term
				}
				full := rnd.IntN(6) == 0
				disk.full.Store(full)
				err := w.StoreLogs(es)
				disk.full.Store(false)
				if err != nil {
					if !full {
						// The rotation after the last append may have met the full disk.
						err = w.StoreLogs(es)
					}
					if err != nil && !full {
						t.Fatalf("seed %d step %d: append: %v", seed, step, err)
					}
				}
				if err == nil {
					for i := last + 1; i <= last+n; i++ {
						model[i] = term
					}
					if first == 0 {
						first = last + 1
					}
					last += n
				}
			case what < 7 && last > first: // a suffix, as a follower with another leader's entries does
				lo := first + 1 + rnd.Uint64N(last-first)
				disk.full.Store(rnd.IntN(3) == 0)
				disk.inPlace = rnd.IntN(2) == 0
				err := w.DeleteRange(lo, last)
				disk.full.Store(false)
				disk.inPlace = false
				if err != nil {
					if !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("seed %d step %d: remove %d to %d: %v", seed, step, lo, last, err)
					}
					failed++
					w.check(t, last) // nothing is gone
					err = w.DeleteRange(lo, last)
				}
				if err != nil {
					t.Fatalf("seed %d step %d: remove %d to %d, again: %v", seed, step, lo, last, err)
				}
				for i := lo; i <= last; i++ {
					delete(model, i)
				}
				last = lo - 1
				term++
			case what < 8 && last > first: // a prefix, as after a snapshot
				hi := first + rnd.Uint64N(last-first)
				if err := w.DeleteRange(first, hi); err != nil {
					t.Fatalf("seed %d step %d: remove %d to %d: %v", seed, step, first, hi, err)
				}
				for i := first; i <= hi; i++ {
					delete(model, i)
				}
				first = hi + 1
			case what == 9:
				if err := w.close(); err != nil {
					t.Fatal(err)
				}
				w = openTestWALOn(t, dir, disk, 8<<10)
			}
			gotFirst, err1 := w.FirstIndex()
			gotLast, err2 := w.LastIndex()
			if err1 != nil || err2 != nil || gotFirst != first || gotLast != last {
				t.Fatalf("seed %d step %d: log is %d to %d (%v %v), want %d to %d", seed, step, gotFirst, gotLast, err1, err2, first, last)
			}
			for i := first; i <= last && last > 0; i++ {
				var e raft.Log
				if err := w.GetLog(i, &e); err != nil || e.Index != i || e.Term != model[i] {
					t.Fatalf("seed %d step %d: entry %d: %v, index %d, term %d, want %d", seed, step, i, err, e.Index, e.Term, model[i])
				}
			}
		}
		w.close()
	}
	if failed == 0 {
		t.Error("no removal met a full disk")
	}
}

// The disk becomes full while the end of the log is removed. raft-wal says that it failed after its list of segments was
// written, when there is no room for the next segment: at the next opening the entries are gone.
func TestRemovalOnAFullDisk(t *testing.T) {
	for name, inPlace := range map[string]bool{"nothing is written": false, "the list is written": true} {
		for _, c := range []struct {
			what         string
			lo, hi, left uint64
		}{{"the end", 8, 10, 7}, {"all", 1, 10, 0}} {
			t.Run(name+", "+c.what, func(t *testing.T) {
				dir := t.TempDir()
				disk := &fullFS{fileSystem: newOSFiles(), inPlace: inPlace}
				w := openTestWALOn(t, dir, disk, segmentBytes)
				if err := w.StoreLogs(entries(1, 10, 100)); err != nil {
					t.Fatal(err)
				}
				disk.full.Store(true)
				err := w.DeleteRange(c.lo, c.hi)
				if err != nil {
					w.check(t, 10)
				}
				disk.full.Store(false)
				if err := w.DeleteRange(c.lo, c.hi); err != nil {
					t.Fatalf("after %v: %v", err, err)
				}
				w.check(t, c.left)
				if err := w.StoreLogs(entries(c.left+1, c.left+5, 100)); err != nil {
					t.Fatal(err)
				}
				w.check(t, c.left+5)
				if err := w.close(); err != nil {
					t.Fatal(err)
				}
				openTestWAL(t, dir).check(t, c.left+5)
			})
		}
	}
}
