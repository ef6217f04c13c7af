package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// mendSegments puts in order what raft-wal 0.4.0 leaves behind but does not take up again itself:
//
//   - a tail that has an index block but is not sealed in the metadata, since the process ended in between, or while
//     the block was written (raft-wal takes a torn one for whole): it is written anew and the rotation completed;
//   - a tail that became a middle segment because entries were removed from the end of the log: it is sealed in the
//     metadata but has no index block, so nothing in it could be read. It is written anew, with one.
func (l *walLog) mendSegments(meta types.MetaStore, filer *segment.Filer) error {
	st, err := meta.Load(l.dir)
	if err != nil {
		return err
	}
	changed := false
	for i := range st.Segments {
		s := &st.Segments[i]
		if s.SealTime.IsZero() || s.IndexStart != 0 {
			continue
		}
		whole, err := reseal(filer, *s, st.NextSegmentID)
		if err != nil {
			return fmt.Errorf("rewrite segment %s, which has no index: %w", segment.FileName(*s), err)
		}
		st.NextSegmentID++
		*s = whole // the old file is deleted by wal.Open, as nothing refers to it
		changed = true
	}
	if n := len(st.Segments); n > 0 && st.Segments[n-1].SealTime.IsZero() {
		tail := &st.Segments[n-1]
		if w, err := filer.RecoverTail(*tail); err == nil { // else wal.Open decides, and says so
			sealed, _, err := w.Sealed()
			last := w.LastIndex()
			w.Close()
			if err != nil {
				return err
			}
			if sealed {
				next := types.SegmentInfo{
					ID: st.NextSegmentID + 1, BaseIndex: tail.BaseIndex, MinIndex: tail.BaseIndex,
					SizeLimit: uint32(l.segment), Codec: tail.Codec, CreateTime: time.Now(),
				}
				if last >= tail.MinIndex && last > 0 {
					tail.SealTime, tail.MaxIndex = time.Now(), last
					whole, err := reseal(filer, *tail, st.NextSegmentID)
					if err != nil {
						return fmt.Errorf("rewrite segment %s, which was being sealed: %w", segment.FileName(*tail), err)
					}
					*tail = whole
					next.BaseIndex, next.MinIndex = last+1, last+1
					st.Segments = append(st.Segments, next)
				} else {
					*tail = next // nothing in it was committed
				}
				st.NextSegmentID += 2
				changed = true
			}
		}
	}
	if !changed {
		return nil
	}
	return meta.CommitState(st)
}

// reseal copies the live entries of a segment into a new file that is sealed with an index.
func reseal(filer *segment.Filer, old types.SegmentInfo, id uint64) (types.SegmentInfo, error) {
	r, err := filer.RecoverTail(old)
	if err != nil {
		return old, err
	}
	defer r.Close()
	now := old
	now.ID, now.BaseIndex = id, old.MinIndex
	now.SizeLimit = 1 // the first append seals
	if err := filer.Delete(now.BaseIndex, id); err != nil && !errors.Is(err, os.ErrNotExist) {
		return old, err // left by an earlier attempt
	}
	w, err := filer.Create(now)
	if err != nil {
		return old, err
	}
	defer w.Close()
	var es []types.LogEntry
	for i := old.MinIndex; i <= old.MaxIndex; i++ {
		b, err := r.GetLog(i)
		if err != nil {
			return old, fmt.Errorf("entry %d: %w", i, err)
		}
		es = append(es, types.LogEntry{Index: i, Data: bytes.Clone(b.Bs)})
		b.Close()
	}
	if err := w.Append(es); err != nil {
		return old, err
	}
	sealed, start, err := w.Sealed()
	if err != nil {
		return old, err
	}
	if !sealed {
		return old, errors.New("it did not seal")
	}
	now.IndexStart = start
	return now, nil
}

// rotations knows whether raft-wal has a rotation to do. raft-wal rotates a sealed segment in the background;
// its StoreLogs waits for that, but its DeleteRange does not, and when it comes first, the rotation hits the new
// tail and the log is beyond repair. Once the rotation has begun it holds raft-wal's lock, which is enough.
type rotations struct {
	mu     sync.Mutex
	sealed int // segments that StoreLogs found sealed
	begun  int
	news   chan struct{} // closed and replaced when begun changes
}

func newRotations() *rotations { return &rotations{news: make(chan struct{})} }

// rotationFor is far above what a rotation's start can take.
const rotationFor = 10 * time.Second

func (r *rotations) settle() error {
	limit := time.NewTimer(rotationFor)
	defer limit.Stop()
	for {
		r.mu.Lock()
		pending, news := r.sealed > r.begun, r.news
		r.mu.Unlock()
		if !pending {
			return nil
		}
		select {
		case <-news:
		case <-limit.C:
			return errors.New("the raft log did not rotate its segment")
		}
	}
}

// IncrementCounter hears of the rotation from raft-wal's metrics.
func (r *rotations) IncrementCounter(name string, _ uint64) {
	if name != "segment_rotations" {
		return
	}
	r.mu.Lock()
	r.begun++
	close(r.news)
	r.news = make(chan struct{})
	r.mu.Unlock()
}

// SetGauge is part of raft-wal's metrics collector.
func (r *rotations) SetGauge(string, uint64) {}

// watchedFiler hands out segment writers that tell rotations when raft-wal learns that they are sealed.
type watchedFiler struct {
	*segment.Filer
	rot *rotations
}

func (f watchedFiler) Create(i types.SegmentInfo) (types.SegmentWriter, error) {
	return f.watch(f.Filer.Create(i))
}

func (f watchedFiler) RecoverTail(i types.SegmentInfo) (types.SegmentWriter, error) {
	return f.watch(f.Filer.RecoverTail(i))
}

func (f watchedFiler) watch(w types.SegmentWriter, err error) (types.SegmentWriter, error) {
	if err != nil {
		return nil, err
	}
	return watchedWriter{w, f.rot}, nil
}

type watchedWriter struct {
	types.SegmentWriter
	rot *rotations
}

// Sealed is asked by raft-wal after each append, and only then.
func (w watchedWriter) Sealed() (bool, uint64, error) {
	sealed, start, err := w.SegmentWriter.Sealed()
	if sealed && err == nil {
		w.rot.mu.Lock()
		w.rot.sealed++
		w.rot.mu.Unlock()
	}
	return sealed, start, err
}
