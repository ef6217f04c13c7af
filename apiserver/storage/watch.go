package storage

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/tripod-cluster/tripod/store"
)

// watchHub is the Watcher of one client: it knows that client's watches, to
// ask them for progress and to end them.
type watchHub struct {
	b    *Backend
	done chan struct{}

	mu      sync.Mutex
	closed  bool
	watches map[*watch]struct{}
	wg      sync.WaitGroup
}

var _ clientv3.Watcher = (*watchHub)(nil)

func newWatchHub(b *Backend) *watchHub {
	return &watchHub{b: b, done: make(chan struct{}), watches: map[*watch]struct{}{}}
}

// watch is one goroutine between a pull watcher and the channel of its user.
type watch struct {
	hub      *watchHub
	key      string
	source   *store.Watcher
	out      chan clientv3.WatchResponse
	progress bool // wants the revision when idle

	wake chan struct{} // of capacity one: wanted has changed
	mu   sync.Mutex
	// wanted is the revision that the user waits to hear of.
	wanted int64
	// told is the highest revision that the user knows of; only the
	// watch's goroutine uses it.
	told int64
}

// Watch delivers the events of key from a revision on, as etcd's client does:
// the channel ends with an error when history was compacted away or when a
// leader was required and lost, and silently when ctx ends.
func (h *watchHub) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpWatch(key, opts...)
	w := &watch{
		hub:      h,
		key:      key,
		out:      make(chan clientv3.WatchResponse),
		progress: op.IsProgressNotify(),
		wake:     make(chan struct{}, 1),
	}
	source, err := h.b.store.Watch(store.WatchOptions{
		Key:           op.KeyBytes(),
		RangeEnd:      op.RangeBytes(),
		StartRevision: op.Rev(),
		PrevKV:        op.IsPrevKV(),
		NoPut:         op.IsFilterPut(),
		NoDelete:      op.IsFilterDelete(),
	})
	if err != nil {
		return failed(err)
	}
	w.source = source
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		source.Close()
		return failed(rpctypes.ErrGRPCStopped)
	}
	h.watches[w] = struct{}{}
	h.wg.Add(1)
	h.mu.Unlock()

	var lost <-chan struct{}
	if requiresLeader(ctx) {
		lost = h.b.leader.gone()
	}
	go func() {
		defer h.wg.Done()
		defer close(w.out)
		defer source.Close()
		w.run(ctx, lost)
		h.mu.Lock()
		delete(h.watches, w)
		h.mu.Unlock()
	}()
	return w.out
}

// RequestProgress makes every watch of this client tell the revision up to
// which it has delivered everything.
func (h *watchHub) RequestProgress(context.Context) error {
	rev := h.b.store.Revision()
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		w.want(rev)
	}
	return nil
}

// reportProgress does so for the watches of the resource whose root is key,
// up to rev, which the store holds.
func (h *watchHub) reportProgress(key string, rev int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		if w.progress && (w.key == key || w.key == key+"/") {
			w.want(rev)
		}
	}
}

// Close ends all watches and waits for their goroutines.
func (h *watchHub) Close() error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
	h.mu.Unlock()
	h.wg.Wait()
	return nil
}

func (w *watch) want(rev int64) {
	w.mu.Lock()
	w.wanted = max(w.wanted, rev)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watch) run(ctx context.Context, lost <-chan struct{}) {
	var idle <-chan time.Time
	if w.progress {
		t := time.NewTicker(w.hub.b.progressInterval)
		defer t.Stop()
		idle = t.C
	}
	due := false // an interval has passed since anything was told
	for {
		batch, err := w.source.Next()
		if err != nil {
			w.send(ctx, failure(err))
			return
		}
		drained := batch.Revision
		if len(batch.Events) > 0 {
			if !w.send(ctx, delivery(batch)) {
				return
			}
			w.told = max(w.told, last(batch))
			due = false
			continue
		}
		w.mu.Lock()
		asked := w.wanted > 0 && drained >= w.wanted
		if asked {
			w.wanted = 0
		}
		w.mu.Unlock()
		if asked || due && drained > w.told {
			if !w.send(ctx, clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: drained}}) {
				return
			}
			w.told = max(w.told, drained)
		}
		due = false
		select {
		case <-ctx.Done():
			return
		case <-w.hub.done:
			return
		case <-lost:
			w.send(ctx, failure(rpctypes.ErrGRPCNoLeader))
			return
		case <-w.source.Ready():
		case <-w.wake:
		case <-idle:
			due = true
		}
	}
}

func (w *watch) send(ctx context.Context, r clientv3.WatchResponse) bool {
	select {
	case w.out <- r:
		return true
	case <-ctx.Done():
	case <-w.hub.done:
	}
	return false
}

func delivery(b store.Batch) clientv3.WatchResponse {
	r := clientv3.WatchResponse{
		Header: &pb.ResponseHeader{Revision: last(b)},
		Events: make([]*clientv3.Event, len(b.Events)),
	}
	for i, e := range b.Events {
		r.Events[i] = (*clientv3.Event)(e)
	}
	return r
}

func last(b store.Batch) int64 { return b.Events[len(b.Events)-1].Kv.ModRevision }

// failure is the last response of a watch that ends with err. A store that was
// restored to an older state is, for the user, one whose history is lost: both
// read again.
func failure(err error) clientv3.WatchResponse {
	r := clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true}
	var compacted *store.CompactedError
	switch {
	case errors.As(err, &compacted):
		r.CompactRevision = compacted.CompactRevision
	case errors.Is(err, store.ErrRevisionWentBack), errors.Is(err, rpctypes.ErrGRPCCompacted):
		r.CompactRevision = 1
	default:
		r.CancelReason = rpctypes.ErrorDesc(err)
	}
	return r
}

// failed is a watch that has ended before it began.
func failed(err error) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse, 1)
	out <- failure(err)
	close(out)
	return out
}

func requiresLeader(ctx context.Context) bool {
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		return false
	}
	v := md.Get(rpctypes.MetadataRequireLeaderKey)
	return len(v) > 0 && v[0] == rpctypes.MetadataHasLeader
}
