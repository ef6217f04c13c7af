package etcdapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// recv returns the next response of a client's watch.
func recv(t *testing.T, ch clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case r, ok := <-ch:
		if !ok {
			t.Fatal("watch channel is closed")
		}
		return r
	case <-time.After(patience):
		t.Fatal("no response of the watch")
	}
	panic("unreachable")
}

func events(r clientv3.WatchResponse) string {
	var out []string
	for _, ev := range r.Events {
		s := fmt.Sprintf("%s %s=%s", ev.Type, ev.Kv.Key, ev.Kv.Value)
		if ev.PrevKv != nil {
			s += fmt.Sprintf("(%s)", ev.PrevKv.Value)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestClientWatch(t *testing.T) {
	g := newRig(t, nil)
	c, ctx := g.client, testContext(t)
	created := c.Watch(ctx, "a", clientv3.WithCreatedNotify(), clientv3.WithPrevKV())
	if r := recv(t, created); !r.Created {
		t.Errorf("%+v", r)
	}
	prefix := c.Watch(ctx, "a", clientv3.WithPrefix(), clientv3.WithRev(1))
	deletes := c.Watch(ctx, "a", clientv3.WithFilterPut(), clientv3.WithRev(1))
	puts := c.Watch(ctx, "a", clientv3.WithFilterDelete(), clientv3.WithRev(1))
	c.Put(ctx, "a", "1")
	c.Put(ctx, "ab", "2")
	c.Put(ctx, "a", "3")
	c.Delete(ctx, "a")
	for name, w := range map[string]struct {
		ch   clientv3.WatchChan
		want string
	}{
		"key":     {created, "PUT a=1 PUT a=3(1) DELETE a=(3)"},
		"prefix":  {prefix, "PUT a=1 PUT ab=2 PUT a=3 DELETE a="},
		"deletes": {deletes, "DELETE a="},
		"puts":    {puts, "PUT a=1 PUT a=3"},
	} {
		got := ""
		for len(got) < len(w.want) {
			got = strings.TrimSpace(got + " " + events(recv(t, w.ch)))
		}
		if got != w.want {
			t.Errorf("%s: %s, want %s", name, got, w.want)
		}
	}
}

func TestWatchOfCompactedRevision(t *testing.T) {
	g := newRig(t, nil)
	c, ctx := g.client, testContext(t)
	for i := range 5 {
		c.Put(ctx, "a", fmt.Sprint(i))
	}
	c.Delete(ctx, "a")
	c.Compact(ctx, 7)
	if r := recv(t, c.Watch(ctx, "a", clientv3.WithRev(7))); events(r) != "DELETE a=" {
		t.Errorf("from the compact revision: %+v", r)
	}
	if r := recv(t, c.Watch(ctx, "a", clientv3.WithRev(3))); r.CompactRevision != 7 || r.Err() != rpctypes.ErrCompacted {
		t.Errorf("from before it: %+v, %v", r, r.Err())
	}
}

// A stream is driven by hand where the client library hides the protocol.
type rawWatch struct {
	t *testing.T
	pb.Watch_WatchClient
}

func (g *rig) raw(t *testing.T, ctx context.Context) rawWatch {
	t.Helper()
	s, err := pb.NewWatchClient(g.conn).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return rawWatch{t, s}
}

func (r rawWatch) create(c *pb.WatchCreateRequest) *pb.WatchResponse {
	r.t.Helper()
	if err := r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}}); err != nil {
		r.t.Fatal(err)
	}
	return r.recv()
}

func (r rawWatch) recv() *pb.WatchResponse {
	r.t.Helper()
	m, err := r.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func TestWatchIDs(t *testing.T) {
	g := newRig(t, nil)
	r := g.raw(t, testContext(t))
	if m := r.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}); !m.Created || m.WatchId != 1 {
		t.Errorf("own ID: %v", m)
	}
	if m := r.create(&pb.WatchCreateRequest{Key: []byte("a")}); !m.Created || m.WatchId != 0 {
		t.Errorf("first chosen ID: %v", m)
	}
	if m := r.create(&pb.WatchCreateRequest{Key: []byte("a")}); !m.Created || m.WatchId != 2 {
		t.Errorf("second chosen ID: %v", m)
	}
	for want, c := range map[string]*pb.WatchCreateRequest{
		"mvcc: duplicate watch ID provided on the WatchStream": {Key: []byte("a"), WatchId: 1},
		"mvcc: watcher range is empty":                         {Key: []byte("b"), RangeEnd: []byte("a")},
		rpctypes.ErrCompacted.Error():                          {Key: []byte("b"), StartRevision: -1},
	} {
		if m := r.create(c); !m.Created || !m.Canceled || m.WatchId != -1 || m.CancelReason != want {
			t.Errorf("%v: %v, want %s", c, m, want)
		}
	}
	r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 1}}})
	if m := r.recv(); !m.Canceled || m.WatchId != 1 || m.CancelReason != "" {
		t.Errorf("cancel: %v", m)
	}
	if m := r.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}); !m.Created || m.Canceled {
		t.Errorf("a canceled ID is free again: %v", m)
	}
}

// The answer to a progress request never runs ahead of the events.
func TestProgressRequestFollowsTheEvents(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	r := g.raw(t, ctx)
	r.create(&pb.WatchCreateRequest{Key: []byte("a")})
	r.create(&pb.WatchCreateRequest{Key: []byte("quiet")})
	const n = 200
	go func() {
		for range n {
			g.client.Put(ctx, "a", "v")
			r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		}
	}()
	seen, progressed := int64(1), int64(0)
	for progressed < n+1 {
		m := r.recv()
		for _, ev := range m.Events {
			if ev.Kv.ModRevision != seen+1 {
				t.Fatalf("event of %d after %d", ev.Kv.ModRevision, seen)
			}
			seen = ev.Kv.ModRevision
		}
		if len(m.Events) == 0 {
			if m.WatchId != -1 || m.Header.Revision > seen {
				t.Fatalf("progress to %d, events to %d: %v", m.Header.Revision, seen, m)
			}
			progressed = m.Header.Revision
		}
	}
}

// Writes that come while a progress request is answered are told after it, to all of the
// stream's watches: etcd's client takes a progress for one of each watch.
func TestProgressIsNotBehindTheEvents(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	r := g.raw(t, ctx)
	const watches, requests = 100, 50
	for range watches {
		r.create(&pb.WatchCreateRequest{Key: []byte("a")})
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Microsecond):
				g.flaky.Proposer.Propose(ctx, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte("a")}})
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	last := int64(0)
	for range requests {
		r.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
		for {
			m := r.recv()
			for _, ev := range m.Events {
				last = max(last, ev.Kv.ModRevision)
			}
			if len(m.Events) == 0 {
				if m.Header.Revision < last {
					t.Fatalf("progress to %d after an event of %d", m.Header.Revision, last)
				}
				break
			}
		}
	}
}

func TestNoProgressBeforeAFutureRevision(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	r := g.raw(t, ctx)
	r.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 3})
	progress := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	r.Send(progress)
	// The answer to this comes after the answer to the request before, which is none.
	if m := r.create(&pb.WatchCreateRequest{Key: []byte("b")}); !m.Created {
		t.Errorf("%v", m)
	}
	g.client.Put(ctx, "x", "2")
	g.client.Put(ctx, "x", "3")
	r.Send(progress)
	if m := r.recv(); m.WatchId != -1 || m.Header.Revision != 3 {
		t.Errorf("%v", m)
	}
}

func TestProgressNotify(t *testing.T) {
	g := newRig(t, func(c *Config) { c.ProgressInterval = 20 * time.Millisecond })
	ctx := testContext(t)
	w := g.client.Watch(ctx, "quiet", clientv3.WithProgressNotify())
	g.client.Put(ctx, "loud", "1")
	for {
		r := recv(t, w)
		if !r.IsProgressNotify() {
			t.Fatalf("%+v", r)
		}
		if r.Header.Revision == 2 {
			break
		}
	}
}

func TestFragments(t *testing.T) {
	g := newRig(t, func(c *Config) { c.MaxRequestBytes = 100 << 10 })
	g.fill(t, 2000) // 2 MB of events, with a limit of 612 kB
	r := g.raw(t, testContext(t))
	r.create(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), StartRevision: 1, Fragment: true})
	events, fragments := 0, 0
	for events < 2000 {
		m := r.recv()
		events += len(m.Events)
		if m.Fragment {
			fragments++
		}
	}
	if events != 2000 || fragments == 0 {
		t.Errorf("%d events, %d fragments", events, fragments)
	}
}

// A stream that requires a leader ends when there is none; others live on.
func TestRequireLeader(t *testing.T) {
	g := newRig(t, func(c *Config) { c.LeaderCheckInterval = 5 * time.Millisecond })
	ctx := testContext(t)
	needs := metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	strict, relaxed := g.raw(t, needs), g.raw(t, ctx)
	strict.create(&pb.WatchCreateRequest{Key: []byte("a")})
	relaxed.create(&pb.WatchCreateRequest{Key: []byte("a")})
	keepalive, err := pb.NewLeaseClient(g.conn).LeaseKeepAlive(needs)
	if err != nil {
		t.Fatal(err)
	}
	lease, _ := g.client.Grant(ctx, 60)
	keepalive.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease.ID)})
	if _, err := keepalive.Recv(); err != nil {
		t.Fatal(err)
	}

	g.cluster.leader.Store(0)
	if _, err := strict.Recv(); rpctypes.Error(err) != rpctypes.ErrNoLeader {
		t.Errorf("watch stream ended with %v", err)
	}
	if _, err := keepalive.Recv(); rpctypes.Error(err) != rpctypes.ErrNoLeader {
		t.Errorf("keep-alive stream ended with %v", err)
	}
	if _, err := pb.NewKVClient(g.conn).Range(needs, &pb.RangeRequest{Key: []byte("a"), Serializable: true}); rpctypes.Error(err) != rpctypes.ErrNoLeader {
		t.Errorf("read: %v", err)
	}
	if m := relaxed.create(&pb.WatchCreateRequest{Key: []byte("b")}); !m.Created {
		t.Errorf("%v", m)
	}
	g.cluster.leader.Store(8)
	again := g.raw(t, needs)
	if m := again.create(&pb.WatchCreateRequest{Key: []byte("b")}); !m.Created {
		t.Errorf("%v", m)
	}
}

// Watchers leave nothing behind in the store when their stream ends.
func TestStreamEndClosesItsWatchers(t *testing.T) {
	g := newRig(t, nil)
	ctx, cancel := context.WithCancel(testContext(t))
	r := g.raw(t, ctx)
	for range 10 {
		r.create(&pb.WatchCreateRequest{Key: []byte("a")})
	}
	if n := g.store.Watchers(); n != 10 {
		t.Errorf("%d watchers, want 10", n)
	}
	cancel()
	deadline := time.After(patience)
	for g.store.Watchers() != 0 {
		select {
		case <-deadline:
			t.Fatalf("%d watchers are left", g.store.Watchers())
		case <-time.After(time.Millisecond):
		}
	}
}
