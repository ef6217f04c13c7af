package etcdapi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// watchSide is one server's stream of watches, and what came of each watch.
type watchSide struct {
	conn   *grpc.ClientConn
	raw    rawWatch
	in     chan *pb.WatchResponse
	made   []*watchTale // in the order of creation; refused ones too
	byID   map[int64]*watchTale
	synced int64 // what the last answer to a progress request said
}

type watchTale struct {
	id     int64
	start  string
	events []string
	end    string
}

func newWatchSide(t *testing.T, ctx context.Context, conn *grpc.ClientConn) *watchSide {
	s := &watchSide{conn: conn, raw: (&rig{conn: conn}).raw(t, ctx), in: make(chan *pb.WatchResponse), byID: map[int64]*watchTale{}}
	go func() {
		defer close(s.in)
		for {
			m, err := s.raw.Recv()
			if err != nil {
				return
			}
			select {
			case s.in <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

// next takes in one response; false when none comes in time.
func (s *watchSide) next(t *testing.T, wait time.Duration) bool {
	t.Helper()
	var m *pb.WatchResponse
	select {
	case got, ok := <-s.in:
		if !ok {
			t.Fatal("the stream has ended")
		}
		m = got
	case <-time.After(wait):
		return false
	}
	switch {
	case m.Created:
		tale := &watchTale{id: m.WatchId, start: fmt.Sprintf("id %d canceled %v %q", m.WatchId, m.Canceled, m.CancelReason)}
		s.made = append(s.made, tale)
		if !m.Canceled {
			s.byID[m.WatchId] = tale
		}
	case m.WatchId == noWatchID:
		s.synced = m.Header.Revision
	case m.Canceled:
		tale := s.byID[m.WatchId]
		if tale.end != "" {
			return true
		}
		tale.end = fmt.Sprintf("compacted at %d, %q", m.CompactRevision, m.CancelReason)
		if m.CompactRevision != 0 {
			// Until the client cancels it, it holds up etcd's answers to
			// progress requests.
			s.send(t, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: m.WatchId}}})
		}
	default:
		tale := s.byID[m.WatchId]
		for _, e := range m.Events {
			text := fmt.Sprintf("%v %s=%s lease %d, %d since %d, version %d", e.Type, e.Kv.Key, e.Kv.Value, e.Kv.Lease, e.Kv.ModRevision, e.Kv.CreateRevision, e.Kv.Version)
			if e.PrevKv != nil {
				text += fmt.Sprintf(" before %s of %d", e.PrevKv.Value, e.PrevKv.ModRevision)
			}
			tale.events = append(tale.events, text)
		}
	}
	return true
}

func (s *watchSide) send(t *testing.T, r *pb.WatchRequest) {
	t.Helper()
	if err := s.raw.Send(r); err != nil {
		t.Fatal(err)
	}
}

// until takes in responses until done.
func (s *watchSide) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if !s.next(t, 50*time.Millisecond) && time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// settle waits until everything up to a revision was sent.
func (s *watchSide) settle(t *testing.T, revision int64) {
	t.Helper()
	ask := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	s.synced = 0
	deadline := time.Now().Add(patience)
	for len(s.live()) > 0 && s.synced < revision {
		s.send(t, ask) // while a watch lags etcd gives no answer
		for s.synced < revision && s.next(t, 20*time.Millisecond) {
		}
		if time.Now().After(deadline) {
			t.Fatalf("progress to %d, want %d", s.synced, revision)
		}
	}
}

// live are the IDs of the watches that have not ended, ascending.
func (s *watchSide) live() (ids []int64) {
	for id, tale := range s.byID {
		if tale.end == "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// A real etcd and this server tell the same events to the same watches,
// whatever they ask for, and end them in the same words.
func TestSameWatchesAsEtcd(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	sides := []*watchSide{newWatchSide(t, ctx, startEtcd(t)), newWatchSide(t, ctx, g.conn)}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	h := &history{Rand: rand.New(rand.NewPCG(seed, 1)), rev: 1, straight: true}
	compacted, latest := int64(0), int64(0) // latest: the last start revision asked for

	each := func(f func(s *watchSide)) {
		for _, s := range sides {
			f(s)
		}
	}
	write := func() {
		r := h.txn(1)
		each(func(s *watchSide) {
			if m, err := pb.NewKVClient(s.conn).Txn(ctx, r); err == nil {
				h.rev = m.Header.Revision
			}
		})
	}
	settle := func() {
		for h.rev < latest {
			write()
		}
		each(func(s *watchSide) { s.settle(t, h.rev) })
	}
	for range 200 {
		switch k := h.IntN(12); {
		case k < 6:
			write()
		case k < 10:
			key, end := h.key(), h.end()
			r := &pb.WatchCreateRequest{Key: key, RangeEnd: end, PrevKv: h.one(2), Fragment: h.one(2), ProgressNotify: h.one(2)}
			switch h.IntN(5) {
			case 0, 1:
				r.StartRevision = 1 + h.Int64N(h.rev)
			case 2:
				r.StartRevision = compacted
			case 3:
				r.StartRevision = h.rev + h.Int64N(4)
			}
			if h.one(20) {
				r.StartRevision = -1
			}
			for _, f := range []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE} {
				if h.one(4) {
					r.Filters = append(r.Filters, f)
				}
			}
			// IDs of watches that have ended are not used again: etcd holds
			// those that a compaction has ended.
			if h.one(4) {
				settle()
				if ids := sides[1].live(); len(ids) > 0 {
					r.WatchId = ids[h.IntN(len(ids))]
				}
			} else if h.one(4) {
				r.WatchId = 1000 + h.Int64N(1_000_000)
			}
			latest = max(latest, r.StartRevision)
			each(func(s *watchSide) {
				n := len(s.made)
				s.send(t, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: proto.Clone(r).(*pb.WatchCreateRequest)}})
				s.until(t, "the creation", func() bool { return len(s.made) > n })
			})
		case k < 11:
			settle()
			if ids := sides[1].live(); len(ids) > 0 {
				id := ids[h.IntN(len(ids))]
				each(func(s *watchSide) {
					s.send(t, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
					s.until(t, "the end of a watch", func() bool { return s.byID[id].end != "" })
				})
			}
		default:
			settle()
			at := compacted + 1 + h.Int64N(h.rev-compacted+1)
			if at > h.rev {
				continue
			}
			each(func(s *watchSide) {
				if _, err := pb.NewKVClient(s.conn).Compact(ctx, &pb.CompactionRequest{Revision: at, Physical: true}); err != nil {
					t.Fatal(err)
				}
			})
			compacted = at
		}
	}
	settle()
	total := 0
	for i, want := range sides[0].made {
		got := sides[1].made[i]
		if got.start != want.start || got.end != want.end || !slices.Equal(got.events, want.events) {
			t.Fatalf("watch %d:\n got %s; %s; end %s\nwant %s; %s; end %s", i,
				got.start, strings.Join(got.events, "\n\t"), got.end, want.start, strings.Join(want.events, "\n\t"), want.end)
		}
		total += len(got.events)
	}
	t.Logf("%d watches, %d events", len(sides[0].made), total)
}
