package etcdapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/tripod-cluster/tripod/store"
)

// memoryStream is a client's stream of watches without a network.
type memoryStream struct {
	grpc.ServerStream
	ctx  context.Context
	in   chan *pb.WatchRequest
	sent chan *pb.WatchResponse
}

func (m *memoryStream) Context() context.Context { return m.ctx }

func (m *memoryStream) Recv() (*pb.WatchRequest, error) {
	select {
	case r, ok := <-m.in:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-m.ctx.Done():
		return nil, m.ctx.Err()
	}
}

func (m *memoryStream) Send(r *pb.WatchResponse) error {
	select {
	case m.sent <- r:
		return nil
	case <-m.ctx.Done():
		return m.ctx.Err()
	}
}

// watchedChange is a change that was made.
type watchedChange struct {
	rev int64
	key string
	del bool
}

// expected is a watch as the client knows it.
type expected struct {
	key, end string
	filters  []pb.WatchCreateRequest_FilterType
	start    int64 // as requested
	next     int64 // revision from which on events are still to come
	seen     int   // events of next that were seen
}

func (w *expected) wants(c watchedChange) bool {
	in := c.key == w.key
	if w.end != "" {
		in = c.key >= w.key && (w.end == "\x00" || c.key < w.end)
	}
	kind := pb.WatchCreateRequest_NOPUT
	if c.del {
		kind = pb.WatchCreateRequest_NODELETE
	}
	return in && !slices.Contains(w.filters, kind)
}

// schedule drives one stream by the bytes of a script.
type schedule struct {
	t       testing.TB
	s       *store.Store
	stream  *memoryStream
	history []watchedChange
	live    map[int64]*expected
	script  []byte

	created  *pb.WatchResponse
	canceled int64
	progress int64
}

// draw returns a number below n from the script; 0 when it has ended.
func (x *schedule) draw(n int) int {
	if len(x.script) == 0 {
		return 0
	}
	b := x.script[0]
	x.script = x.script[1:]
	return int(b) % n
}

func (x *schedule) key() string { return []string{"a", "ab", "b", "c"}[x.draw(4)] }
func (x *schedule) end() string { return []string{"", "", "b", "\x00"}[x.draw(4)] }

// due are the changes that a watch is still to see, up to a revision.
func (x *schedule) due(w *expected, upTo int64) (out []watchedChange) {
	for _, c := range x.history {
		if c.rev >= w.next && c.rev <= upTo && w.wants(c) {
			out = append(out, c)
		}
	}
	return out
}

// take checks one response against what was expected.
func (x *schedule) take(m *pb.WatchResponse) {
	t := x.t
	if m.Created {
		x.created = m
		return
	}
	if m.WatchId == noWatchID {
		for id, w := range x.live {
			if due := x.due(w, m.Header.Revision); len(due) > 0 {
				t.Fatalf("progress to %d before %+v was sent to watch %d", m.Header.Revision, due[0], id)
			}
		}
		x.progress = m.Header.Revision
		return
	}
	w := x.live[m.WatchId]
	if w == nil {
		t.Fatalf("a response for no watch: %v", m)
	}
	if m.Canceled {
		if m.CompactRevision != 0 && (m.CompactRevision > x.s.CompactRevision() || w.next >= m.CompactRevision) {
			t.Fatalf("watch %d was at %d, the compaction at %d: %v", m.WatchId, w.next, x.s.CompactRevision(), m)
		}
		delete(x.live, m.WatchId)
		x.canceled = m.WatchId
		return
	}
	if len(m.Events) == 0 {
		if due := x.due(w, m.Header.Revision); len(due) > 0 {
			t.Fatalf("notified of %d before %+v was sent to watch %d", m.Header.Revision, due[0], m.WatchId)
		}
		return
	}
	due := x.due(w, m.Header.Revision)
	if w.seen > len(due) {
		t.Fatalf("watch %d has seen %d events of %v", m.WatchId, w.seen, due)
	}
	due = due[w.seen:]
	if len(due) < len(m.Events) || !m.Fragment && len(due) != len(m.Events) {
		t.Fatalf("watch %d from %d:\n got %v\nwant %v", m.WatchId, w.next, m.Events, due)
	}
	for i, e := range m.Events {
		if got := (watchedChange{e.Kv.ModRevision, string(e.Kv.Key), e.Type == mvccpb.Event_DELETE}); got != due[i] {
			t.Fatalf("watch %d: %+v, want %+v", m.WatchId, got, due[i])
		}
	}
	if m.Fragment {
		w.seen += len(m.Events)
	} else {
		w.next, w.seen = m.Header.Revision+1, 0
	}
}

// send sends a request, and takes responses until done.
func (x *schedule) send(r *pb.WatchRequest, done func() bool) {
	deadline := time.After(patience)
	in := x.stream.in
	for in != nil || !done() {
		select {
		case in <- r:
			in = nil
		case m := <-x.stream.sent:
			x.take(m)
		case <-deadline:
			x.t.Fatalf("no answer to %v", r)
		}
	}
}

func (x *schedule) create() {
	r := &pb.WatchCreateRequest{Key: []byte(x.key()), RangeEnd: []byte(x.end()), Fragment: x.draw(2) == 0, PrevKv: x.draw(2) == 0, ProgressNotify: x.draw(2) == 0}
	rev := x.s.Revision()
	switch x.draw(4) {
	case 1:
		r.StartRevision = 1 + int64(x.draw(int(rev)))
	case 2:
		r.StartRevision = max(0, x.s.CompactRevision())
	case 3:
		r.StartRevision = rev + int64(x.draw(4))
	}
	for _, f := range []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE} {
		if x.draw(4) == 1 {
			r.Filters = append(r.Filters, f)
		}
	}
	if x.draw(3) == 1 {
		r.WatchId = int64(1 + x.draw(6))
	}
	w := &expected{key: string(r.Key), end: string(r.RangeEnd), filters: r.Filters, start: r.StartRevision, next: r.StartRevision}
	if w.next == 0 {
		w.next = rev + 1
	}
	empty := emptyRange(r.Key, r.RangeEnd)
	x.created = nil
	// The first events may come with the answer: they are the next ones taken.
	x.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}, func() bool { return x.created != nil })
	m := x.created
	// As of the answer: the end of a watch by a compaction may have come before it.
	_, taken := x.live[r.WatchId]
	taken = taken && r.WatchId != 0
	if m.Canceled != (taken || empty) || m.Canceled && m.WatchId != noWatchID || !m.Canceled && r.WatchId != 0 && m.WatchId != r.WatchId {
		x.t.Fatalf("creation %v (taken %v, empty %v): %v", r, taken, empty, m)
	}
	if m.Canceled {
		return
	}
	if x.live[m.WatchId] != nil {
		x.t.Fatalf("ID %d was given twice", m.WatchId)
	}
	x.live[m.WatchId] = w
}

// ids are the watches that live, ascending.
func (x *schedule) ids() (ids []int64) {
	for id := range x.live {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (x *schedule) write() {
	t, rev := x.t, x.s.Revision()+1
	apply := func(r *pb.InternalRaftRequest) {
		if res := x.s.Apply(r); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	switch x.draw(4) {
	case 0:
		key, end := x.key(), x.end()
		resp, err := x.s.Range(&pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)})
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			x.history = append(x.history, watchedChange{rev, string(kv.Key), true})
		}
		apply(&pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}})
	case 1:
		txn := &pb.TxnRequest{}
		for _, key := range []string{"ab", "c", "a"} {
			txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: bytes.Repeat([]byte("v"), 300)}}})
			x.history = append(x.history, watchedChange{rev, key, false})
		}
		apply(&pb.InternalRaftRequest{Txn: txn})
	default:
		key := x.key()
		x.history = append(x.history, watchedChange{rev, key, false})
		apply(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key), Value: []byte("v")}})
	}
}

func (x *schedule) cancel(id int64) {
	_, lives := x.live[id]
	x.canceled = noWatchID
	x.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}, func() bool { return !lives || x.canceled == id })
}

// settle waits until every watch has all its events, up to now.
func (x *schedule) settle() {
	for _, id := range x.ids() { // those of the future have no say
		if w := x.live[id]; w != nil && w.start > x.s.Revision() {
			x.cancel(id)
		}
	}
	if len(x.live) == 0 {
		return
	}
	x.progress = 0
	rev := x.s.Revision()
	// The last watch may end by a compaction instead; then there is no answer.
	x.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}, func() bool { return x.progress >= rev || len(x.live) == 0 })
}

// runSchedule checks all that a stream of watches promises, over any order of
// requests, changes and compactions.
func runSchedule(t testing.TB, script []byte) {
	ctx, cancel := context.WithCancel(context.Background())
	s := store.New(store.Options{})
	p := store.NewLocal(s)
	c := &fakeCluster{}
	c.leader.Store(8)
	// Small, so that there are fragments.
	server := New(Config{Store: s, Proposer: p, Leaser: &fakeLeaser{p: p, s: s}, Cluster: c, ProgressInterval: time.Millisecond})
	server.cfg.MaxRequestBytes = 2*eventOverhead - requestOverhead
	defer server.Close()
	x := &schedule{t: t, s: s, script: script, live: map[int64]*expected{},
		stream: &memoryStream{ctx: ctx, in: make(chan *pb.WatchRequest), sent: make(chan *pb.WatchResponse)}}
	ended := make(chan error)
	go func() { ended <- (&watchServer{s: server}).Watch(x.stream) }()
	defer func() {
		cancel()
		<-ended
		if n := s.Watchers(); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	}()
	for len(x.script) > 0 {
		switch x.draw(10) {
		case 0, 1, 2, 3:
			x.write()
		case 4, 5, 6:
			x.create()
		case 7:
			if ids := x.ids(); len(ids) > 0 && x.draw(4) > 0 {
				x.cancel(ids[x.draw(len(ids))])
			} else {
				x.cancel(77)
			}
		case 8:
			x.settle()
		case 9:
			at := int64(x.draw(int(s.Revision()))) + 1
			s.Apply(&pb.InternalRaftRequest{Compaction: &pb.CompactionRequest{Revision: at}})
		}
	}
	x.settle()
	for id, w := range x.live {
		if due := x.due(w, s.Revision()); len(due) > 0 {
			t.Fatalf("watch %d never saw %+v", id, due)
		}
	}
}

func TestWatchStreamSchedules(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 200 {
		script := make([]byte, 20+r.IntN(400))
		for j := range script {
			script[j] = byte(r.Uint32())
		}
		if !t.Run(fmt.Sprint(i), func(t *testing.T) { runSchedule(t, script) }) {
			t.Fatalf("seed %d, script %x", seed, script)
		}
	}
}

// FuzzWatchStream looks for schedules that chance does not find.
func FuzzWatchStream(f *testing.F) {
	f.Add([]byte{4, 0, 3, 0, 0, 0, 0, 2, 0, 1, 0, 0, 8, 9, 1, 4, 0, 3, 0, 0, 0, 1, 0, 8})
	f.Add(bytes.Repeat([]byte{1, 1, 5, 2, 2, 1, 0, 1, 3, 2, 9, 1, 7, 1, 8}, 12))
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 4096 {
			return
		}
		runSchedule(t, script)
	})
}
