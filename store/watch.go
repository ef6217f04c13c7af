package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// A batch ends with the first revision that reaches one of these, so that a
// watcher that is far behind takes little memory.
const (
	maxBatchEvents = 1000
	maxBatchBytes  = 4 << 20 // of keys and values
)

// ErrWatcherClosed is returned by Next after Close.
var ErrWatcherClosed = errors.New("watcher is closed")

// ErrRevisionWentBack is returned by Next when the store was restored to a
// state older than what the watcher had seen: list and watch again.
var ErrRevisionWentBack = errors.New("store was restored to an older revision: read the keys and watch again")

// CompactedError is returned by Next when events that the watcher has yet to
// see were compacted away. It unwraps to rpctypes.ErrGRPCCompacted.
type CompactedError struct {
	// CompactRevision is the oldest revision a watch may start from now.
	CompactRevision int64
}

func (e *CompactedError) Error() string {
	return fmt.Sprintf("watch is behind the compaction at revision %d: read the keys and watch again", e.CompactRevision)
}

// Unwrap returns rpctypes.ErrGRPCCompacted.
func (e *CompactedError) Unwrap() error { return rpctypes.ErrGRPCCompacted }

// WatchOptions says what to watch. Key and RangeEnd follow etcd's convention:
// no RangeEnd is one key, a RangeEnd of one zero byte is everything from Key
// on.
type WatchOptions struct {
	Key      []byte
	RangeEnd []byte
	// StartRevision is the first revision of interest: 0 is the next one; one
	// in the future is waited for.
	StartRevision int64
	// NoPut and NoDelete leave events of that type out.
	NoPut    bool
	NoDelete bool
	// PrevKV adds the key-value before the event where it is still retained.
	PrevKV bool
	// Ready, when set, gets the watcher each time that Watcher.Ready would
	// have a value, which it then never has.
	Ready *ReadyList
}

// ReadyList gathers those of its watchers that may have something new to tell,
// so that one goroutine can wait for many. All methods may be called by anyone.
type ReadyList struct {
	wake chan struct{}

	mu   sync.Mutex
	list []*Watcher
}

// NewReadyList returns an empty list.
func NewReadyList() *ReadyList { return &ReadyList{wake: make(chan struct{}, 1)} }

// Wake has a value when the list is not empty. One value can stand for many
// watchers, and now and then for none.
func (l *ReadyList) Wake() <-chan struct{} { return l.wake }

// Take empties the list and returns its watchers, each once, in the order in
// which they became ready. It may keep spare, a slice that is of no more use to
// the caller, for later.
func (l *ReadyList) Take(spare []*Watcher) []*Watcher {
	clear(spare[:cap(spare)])
	l.mu.Lock()
	defer l.mu.Unlock()
	ws := l.list
	for _, w := range ws {
		w.listed = false
	}
	l.list = spare[:0]
	return ws
}

func (l *ReadyList) add(w *Watcher) {
	l.mu.Lock()
	listed := w.listed
	if !listed {
		w.listed = true
		l.list = append(l.list, w)
	}
	first := !listed && len(l.list) == 1
	l.mu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// Batch is what a watcher has to tell at one time.
type Batch struct {
	// Events are in order; those of one revision are never split over two
	// batches. Their key-values are shared: do not change them.
	Events []*mvccpb.Event
	// Revision is how far the watcher has come with this batch: every event
	// it is to see up to and including this revision was in this batch or one
	// before. Once Events are sent, this is what a progress notification may
	// say. It is below the start revision while that is in the future.
	Revision int64
}

// Watcher reads the events of some keys from the history, at its own pace. It
// holds nothing: one that is too slow gets a CompactedError.
type Watcher struct {
	s     *Store
	span  span
	o     WatchOptions
	ready chan struct{}
	min   int64 // events of earlier revisions are not for this watcher
	slot  int   // place in its group of the index

	listed bool // is in o.Ready; guarded by its mu

	mu          sync.Mutex
	first, last int64 // matching changes are within; first 0: there are none
	err         error // sticky
}

// Watch starts a watcher. An empty Key watches from the first key on. Close
// it when it is no longer needed. A start revision that is compacted is told
// by Next.
func (s *Store) Watch(o WatchOptions) (*Watcher, error) {
	if len(o.Key) == 0 {
		o.Key = []byte{0}
	}
	if o.StartRevision < 0 {
		return nil, fmt.Errorf("watch from revision %d: it must not be negative", o.StartRevision)
	}
	sp := newSpan(bytes.Clone(o.Key), bytes.Clone(o.RangeEnd))
	w := &Watcher{s: s, span: sp, o: o, ready: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.min = o.StartRevision
	if w.min == 0 {
		w.min = s.cur.rev + 1
	}
	if w.min <= s.cur.rev {
		w.first, w.last = w.min, s.cur.rev
		w.signal()
	}
	s.watches.add(w)
	return w, nil
}

// Watchers returns the number of open watchers.
func (s *Store) Watchers() int { return s.watches.count() }

// Ready has a value when Next may have something new to tell. One value can
// stand for many changes, and now and then for none.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Next returns what has happened since the last call. It never waits: Events
// is empty when there is nothing, and Revision is then the store's current
// one. Ready fires again when there is more than fits one batch. Errors are
// final: *CompactedError, ErrRevisionWentBack, ErrWatcherClosed. One caller
// at a time.
func (w *Watcher) Next() (Batch, error) { return w.NextUntil(math.MaxInt64) }

// NextUntil is Next for what happened up to a revision: no event in the batch
// is later, and neither is its Revision.
func (w *Watcher) NextUntil(revision int64) (Batch, error) {
	st := w.s.view()
	w.mu.Lock()
	first, err := w.first, w.err
	w.mu.Unlock()
	if err != nil {
		return Batch{}, err
	}
	b := Batch{Revision: min(st.rev, revision)}
	if first == 0 || first > b.Revision {
		return b, nil
	}
	if first < st.compactRev {
		return Batch{}, w.fail(&CompactedError{CompactRevision: st.compactRev})
	}
	more, size := false, 0
	for i := st.log.seek(first); i < st.log.n; i++ {
		kv := st.log.at(i)
		if kv.ModRevision > revision {
			more = true
			break
		}
		if (len(b.Events) >= maxBatchEvents || size >= maxBatchBytes) && kv.ModRevision != st.log.at(i-1).ModRevision {
			b.Revision, more = st.log.at(i-1).ModRevision, true
			break
		}
		if w.wants(kv) {
			ev := st.event(kv, w.o.PrevKV)
			b.Events = append(b.Events, ev)
			size += len(kv.Key) + len(kv.Value) + len(ev.PrevKv.GetValue())
		}
	}
	w.mu.Lock()
	w.first = 0
	if w.last > b.Revision {
		w.first = b.Revision + 1
	}
	w.mu.Unlock()
	if more {
		w.signal()
	}
	return b, nil
}

// Close ends the watcher; Ready fires once more. It may be called repeatedly.
func (w *Watcher) Close() {
	w.fail(ErrWatcherClosed)
}

// fail ends the watcher with err, unless it has ended already; it returns
// what it ended with.
func (w *Watcher) fail(err error) error {
	w.mu.Lock()
	failed := w.err == nil
	if failed {
		w.err = err
	}
	err = w.err
	w.mu.Unlock()
	if failed {
		w.s.watches.remove(w)
		w.signal()
	}
	return err
}

func (w *Watcher) signal() {
	if w.o.Ready != nil {
		w.o.Ready.add(w)
		return
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

func (w *Watcher) wants(kv *mvccpb.KeyValue) bool {
	if live(kv) && w.o.NoPut || !live(kv) && w.o.NoDelete {
		return false
	}
	return w.span.contains(keyString(kv.Key))
}

// notify notes that kv, which is in the watcher's span, was changed.
func (w *Watcher) notify(kv *mvccpb.KeyValue) {
	if kv.ModRevision < w.min || live(kv) && w.o.NoPut || !live(kv) && w.o.NoDelete {
		return
	}
	w.mu.Lock()
	if w.first == 0 {
		w.first = kv.ModRevision
	}
	w.last = kv.ModRevision
	w.mu.Unlock()
	w.signal()
}

// restored moves the watcher from a store that was at revision before to st.
// What it had not read yet it reads from st's history.
func (w *Watcher) restored(before int64, st *state) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil
	}
	if st.rev < before {
		w.err = ErrRevisionWentBack
		return w.err
	}
	from := w.first
	if from == 0 {
		from = before + 1
	}
	from = max(from, w.min)
	if from <= st.rev {
		w.first, w.last = from, st.rev
	}
	return nil
}

func (st *state) event(kv *mvccpb.KeyValue, withPrev bool) *mvccpb.Event {
	ev := &mvccpb.Event{Kv: kv}
	if !live(kv) {
		ev.Type = mvccpb.Event_DELETE
	}
	if prev := kv.ModRevision - 1; withPrev && kv.CreateRevision != kv.ModRevision && prev >= st.compactRev {
		ev.PrevKv = st.get(kv.Key, prev)
	}
	return ev
}
