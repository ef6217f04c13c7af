package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func mustWatch(t testing.TB, s *Store, o WatchOptions) *Watcher {
	t.Helper()
	w, err := s.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func isReady(w *Watcher) bool {
	select {
	case <-w.Ready():
		return true
	default:
		return false
	}
}

func mustNext(t testing.TB, w *Watcher) Batch {
	t.Helper()
	b, err := w.Next()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWatchWakesOnlyWhomItConcerns(t *testing.T) {
	s := New(Options{})
	watch := func(key, end string) *Watcher {
		return mustWatch(t, s, WatchOptions{Key: []byte(key), RangeEnd: []byte(end)})
	}
	ws := map[string]*Watcher{
		"key":         watch("/pods/a", ""),
		"other key":   watch("/pods/b", ""),
		"prefix":      watch("/pods/", "/pods0"),
		"wide prefix": watch("/", "0"),
		"no prefix":   watch("/nodes/", "/nodes0"),
		"range":       watch("/pods/a", "/pods/c"),
		"other range": watch("/pods/b", "/pods/c"),
		"from key":    watch("/pods", "\x00"),
		"after":       watch("/services", "\x00"),
		"everything":  watch("", "\x00"),
	}
	mustApply(t, s, put("/pods/a", "1"))
	var woken []string
	for name, w := range ws {
		if isReady(w) {
			woken = append(woken, name)
			if b := mustNext(t, w); len(b.Events) != 1 || b.Revision != 2 {
				t.Errorf("%s: %+v", name, b)
			}
		} else if b := mustNext(t, w); len(b.Events) != 0 || b.Revision != 2 {
			t.Errorf("%s: %+v", name, b)
		}
	}
	slices.Sort(woken)
	if got := strings.Join(woken, ", "); got != "everything, from key, key, prefix, range, wide prefix" {
		t.Errorf("woken: %s", got)
	}
	for _, w := range ws {
		w.Close()
		w.Close()
		if _, err := w.Next(); err != ErrWatcherClosed {
			t.Errorf("after Close: %v", err)
		}
	}
	if len(s.watches.points)+len(s.watches.prefixes)+len(s.watches.lengths)+len(s.watches.others.watchers) != 0 {
		t.Errorf("closed watchers are still in the index")
	}
}

func TestWatchOfAFutureRevision(t *testing.T) {
	s := New(Options{})
	w := mustWatch(t, s, WatchOptions{Key: []byte("k"), StartRevision: 4})
	mustApply(t, s, put("k", "2"))
	mustApply(t, s, put("k", "3"))
	if isReady(w) {
		t.Error("woken before its start revision")
	}
	if b := mustNext(t, w); len(b.Events) != 0 || b.Revision != 3 {
		t.Errorf("%+v", b)
	}
	mustApply(t, s, put("k", "4"))
	if !isReady(w) {
		t.Error("not woken at its start revision")
	}
	if b := mustNext(t, w); len(b.Events) != 1 || b.Events[0].Kv.ModRevision != 4 {
		t.Errorf("%+v", b)
	}
}

// One who reads slowly gets batches that end between revisions, and is woken
// for the rest.
func TestBatchesKeepRevisionsWhole(t *testing.T) {
	s := New(Options{})
	w := mustWatch(t, s, WatchOptions{Key: []byte("k"), RangeEnd: []byte("l")})
	const perTxn = 60
	for i := range 50 {
		txn := &pb.TxnRequest{}
		for j := range perTxn {
			txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", j), Value: fmt.Append(nil, i)}}})
		}
		mustApply(t, s, &pb.InternalRaftRequest{Txn: txn})
	}
	total, batches := 0, 0
	for isReady(w) {
		b := mustNext(t, w)
		if len(b.Events)%perTxn != 0 || len(b.Events) > maxBatchEvents+perTxn {
			t.Fatalf("a batch of %d events", len(b.Events))
		}
		if n := len(b.Events); n > 0 && b.Events[n-1].Kv.ModRevision != b.Revision {
			t.Fatalf("drained to %d, last event is of %d", b.Revision, b.Events[n-1].Kv.ModRevision)
		}
		total += len(b.Events)
		batches++
	}
	if total != 50*perTxn || batches < 3 {
		t.Errorf("%d events in %d batches", total, batches)
	}
}

// What is later than asked for stays for the next time.
func TestNextUntil(t *testing.T) {
	s := New(Options{})
	w := mustWatch(t, s, WatchOptions{Key: []byte("k")})
	for i := range 4 { // revisions 2 to 5
		mustApply(t, s, put("k", fmt.Sprint(i)))
	}
	for _, c := range []struct{ until, from, to, revision int64 }{
		{until: 3, from: 2, to: 3, revision: 3},
		{until: 3, revision: 3},
		{until: 4, from: 4, to: 4, revision: 4},
		{until: 9, from: 5, to: 5, revision: 5},
		{until: 9, revision: 5},
	} {
		b, err := w.NextUntil(c.until)
		if err != nil {
			t.Fatal(err)
		}
		var from, to int64
		if n := len(b.Events); n > 0 {
			from, to = b.Events[0].Kv.ModRevision, b.Events[n-1].Kv.ModRevision
		}
		if from != c.from || to != c.to || b.Revision != c.revision {
			t.Errorf("until %d: events of %d to %d, drained to %d, want %+v", c.until, from, to, b.Revision, c)
		}
		if c.to != 0 && c.to < 5 && !isReady(w) {
			t.Errorf("until %d: nothing tells of the rest", c.until)
		}
	}
}

// Neither does a watcher that is far behind hold much at a time.
func TestBatchesAreBoundedInBytes(t *testing.T) {
	s := New(Options{})
	w := mustWatch(t, s, WatchOptions{Key: []byte("k"), PrevKV: true})
	const n, each = 40, 1 << 20
	for range n {
		mustApply(t, s, put("k", strings.Repeat("x", each)))
	}
	total := 0
	for isReady(w) {
		b := mustNext(t, w)
		if len(b.Events) > maxBatchBytes/each {
			t.Fatalf("a batch of %d events of 1 MiB, with as much before", len(b.Events))
		}
		total += len(b.Events)
	}
	if total != n {
		t.Errorf("%d events, want %d", total, n)
	}
}

// A delete at the very revision of the compaction is still seen.
func TestWatchFromTheCompactRevision(t *testing.T) {
	s := New(Options{})
	mustApply(t, s, put("k", "1"))
	mustApply(t, s, &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte("k")}})
	slow := mustWatch(t, s, WatchOptions{Key: []byte("k"), StartRevision: 2})
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 3}})
	w := mustWatch(t, s, WatchOptions{Key: []byte("k"), StartRevision: 3, PrevKV: true})
	if b := mustNext(t, w); len(b.Events) != 1 || eventString(b.Events[0]) != "DELETE k" || b.Events[0].PrevKv != nil {
		t.Errorf("%+v", b)
	}
	_, err := slow.Next()
	var c *CompactedError
	if !errors.As(err, &c) || c.CompactRevision != 3 || !errors.Is(err, rpctypes.ErrGRPCCompacted) {
		t.Errorf("watch from before the compaction: %v", err)
	}
	if _, again := slow.Next(); again != err {
		t.Errorf("then %v", again)
	}
}

// A watcher that has nothing to read does not mind compaction, however long
// nobody asked it.
func TestQuietWatcherSurvivesCompaction(t *testing.T) {
	s := New(Options{})
	w := mustWatch(t, s, WatchOptions{Key: []byte("quiet")})
	for i := range 10 {
		mustApply(t, s, put("loud", fmt.Sprint(i)))
	}
	mustApply(t, s, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 10}})
	if b := mustNext(t, w); len(b.Events) != 0 || b.Revision != 11 {
		t.Errorf("%+v", b)
	}
}

func TestWatchersOverRestore(t *testing.T) {
	lead := New(Options{})
	for i := range 10 {
		mustApply(t, lead, put("k", fmt.Sprint(i)))
	}
	at := func(n int) *Store { // a follower that has n of the changes
		s := New(Options{})
		for i := range n {
			mustApply(t, s, put("k", fmt.Sprint(i)))
		}
		return s
	}

	t.Run("go on where they were", func(t *testing.T) {
		s := at(3)
		w := mustWatch(t, s, WatchOptions{Key: []byte("k"), StartRevision: 3})
		quiet := mustWatch(t, s, WatchOptions{Key: []byte("k")})
		future := mustWatch(t, s, WatchOptions{Key: []byte("k"), StartRevision: 10})
		if err := s.Restore(bytes.NewReader(snapshotBytes(t, lead))); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			w     *Watcher
			first int64
		}{{w, 3}, {quiet, 5}, {future, 10}} {
			b := mustNext(t, c.w)
			if !isReady(c.w) || len(b.Events) != int(12-c.first) || b.Events[0].Kv.ModRevision != c.first || b.Revision != 11 {
				t.Errorf("from %d: %+v", c.first, b)
			}
		}
		mustApply(t, s, put("k", "after"))
		if b := mustNext(t, w); len(b.Events) != 1 || b.Revision != 12 {
			t.Errorf("after the restore: %+v", b)
		}
	})
	t.Run("are told what was compacted away", func(t *testing.T) {
		s := at(3)
		w := mustWatch(t, s, WatchOptions{Key: []byte("k")})
		compacted := New(Options{})
		if err := compacted.Restore(bytes.NewReader(snapshotBytes(t, lead))); err != nil {
			t.Fatal(err)
		}
		mustApply(t, compacted, &pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: 8}})
		if err := s.Restore(bytes.NewReader(snapshotBytes(t, compacted))); err != nil {
			t.Fatal(err)
		}
		var c *CompactedError
		if _, err := w.Next(); !errors.As(err, &c) || c.CompactRevision != 8 {
			t.Errorf("%v", err)
		}
	})
	t.Run("end when the revision goes back", func(t *testing.T) {
		s := at(10)
		w := mustWatch(t, s, WatchOptions{Key: []byte("k")})
		if err := s.Restore(bytes.NewReader(snapshotBytes(t, at(3)))); err != nil {
			t.Fatal(err)
		}
		if !isReady(w) {
			t.Error("not woken")
		}
		if _, err := w.Next(); err != ErrRevisionWentBack {
			t.Errorf("%v", err)
		}
	})
}

// Readers and watchers run beside Apply: a watcher sees each change once and
// in order, and a reader never sees half a transaction.
func TestReadersBesideApply(t *testing.T) {
	s := New(Options{})
	const n = 3000
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range 3 {
		w := mustWatch(t, s, WatchOptions{Key: []byte("a"), RangeEnd: []byte("c")})
		wg.Go(func() {
			last := int64(1)
			for last < n+1 {
				<-w.Ready()
				b, err := w.Next()
				if err != nil {
					errs <- err
					return
				}
				for i, ev := range b.Events {
					if want := last + 1 + int64(i/2); ev.Kv.ModRevision != want {
						errs <- fmt.Errorf("event of revision %d, want %d", ev.Kv.ModRevision, want)
						return
					}
				}
				if len(b.Events) > 0 {
					last = b.Events[len(b.Events)-1].Kv.ModRevision
				}
				if b.Revision < last {
					errs <- fmt.Errorf("drained to %d, sent %d", b.Revision, last)
					return
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for {
				resp, err := s.Range(&pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("c")})
				if err != nil {
					errs <- err
					return
				}
				if len(resp.Kvs) == 2 && !bytes.Equal(resp.Kvs[0].Value, resp.Kvs[1].Value) {
					errs <- fmt.Errorf("half a transaction: %v", resp)
					return
				}
				if resp.Header.Revision > n {
					return
				}
			}
		})
	}
	for i := range n {
		op := func(key string) *pb.RequestOp {
			return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: fmt.Append(nil, i)}}}
		}
		mustApply(t, s, &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: []*pb.RequestOp{op("a"), op("b")}}})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// One list serves many watchers: each is in it once however much happened, again when there is more than a batch, and when it
// was closed.
func TestReadyList(t *testing.T) {
	s := New(Options{})
	l := NewReadyList()
	a := mustWatch(t, s, WatchOptions{Key: []byte("a"), Ready: l})
	all := mustWatch(t, s, WatchOptions{Key: []byte("a"), RangeEnd: []byte{0}, Ready: l})
	take := func() []*Watcher {
		select {
		case <-l.Wake():
		default:
		}
		return l.Take(nil)
	}
	if got := take(); len(got) != 0 {
		t.Fatalf("%d watchers are ready before anything happened", len(got))
	}
	mustApply(t, s, put("b", "1"))
	mustApply(t, s, put("b", "2"))
	mustApply(t, s, put("a", "3"))
	select {
	case <-l.Wake():
	default:
		t.Fatal("the list did not wake its reader")
	}
	if got := l.Take(nil); !slices.Equal(got, []*Watcher{all, a}) {
		t.Fatalf("ready: %v, want %v", got, []*Watcher{all, a})
	}
	if isReady(a) {
		t.Fatal("a watcher of a list is ready by itself")
	}
	if b := mustNext(t, all); len(b.Events) != 3 {
		t.Fatalf("%d events", len(b.Events))
	}
	for i := range 2*maxBatchEvents + 1 {
		mustApply(t, s, put(fmt.Sprint("c", i), "v"))
	}
	for n := 0; n < 2*maxBatchEvents+1; {
		if got := take(); !slices.Equal(got, []*Watcher{all}) {
			t.Fatalf("ready: %v, want the one that has more", got)
		}
		n += len(mustNext(t, all).Events)
	}
	a.Close()
	if got := take(); !slices.Equal(got, []*Watcher{a}) {
		t.Fatalf("ready: %v, want the closed one", got)
	}
}
