package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/tripod-cluster/tripod/apiserver/storage"
	"github.com/tripod-cluster/tripod/store"
)

// moody is a proposer whose answers a test decides.
type moody struct {
	store.Proposer
	mu            sync.Mutex
	propose, read error
	failures      int // how many more calls fail; negative: all
	calls         int
}

func (m *moody) set(propose, read error, failures int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.propose, m.read, m.failures, m.calls = propose, read, failures, 0
}

func (m *moody) fails(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if err == nil || m.failures == 0 {
		return nil
	}
	m.failures--
	return err
}

func (m *moody) Propose(ctx context.Context, r *pb.InternalRaftRequest) (store.Result, error) {
	m.mu.Lock()
	err := m.propose
	m.mu.Unlock()
	if err := m.fails(err); err != nil {
		return store.Result{}, err
	}
	return m.Proposer.Propose(ctx, r)
}

func (m *moody) ReadIndex(ctx context.Context) error {
	m.mu.Lock()
	err := m.read
	m.mu.Unlock()
	if err := m.fails(err); err != nil {
		return err
	}
	return m.Proposer.ReadIndex(ctx)
}

func moodyRig(t *testing.T, o storage.Options) (*rig, *moody) {
	m := &moody{}
	r := newRig(t, func(ro *rigOptions) {
		ro.backend = o
		ro.wrap = func(p store.Proposer) store.Proposer { m.Proposer = p; return m }
	})
	return r, m
}

func create(t *testing.T, r *rig, name string) *example.Pod {
	t.Helper()
	pod, out := &example.Pod{}, &example.Pod{}
	pod.Name, pod.Namespace = name, "ns"
	if err := r.storage.Create(context.Background(), podKey(name), pod, out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// quick bounds requests so that a test of their time-out is short.
var quick = storage.Options{RequestTimeout: 300 * time.Millisecond}

func TestAbsentLeaderIsRetryable(t *testing.T) {
	ctx := context.Background()
	r, m := moodyRig(t, quick)
	create(t, r, "a")
	m.set(rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNoLeader, -1)

	err := r.storage.Get(ctx, podKey("a"), kstorage.GetOptions{}, &example.Pod{})
	wait, after := apierrors.SuggestsClientDelay(err)
	if !apierrors.IsServiceUnavailable(err) || !after || wait < 1 {
		t.Errorf("read without a leader: %v (retry after %d, %v)", err, wait, after)
	}
	err = r.storage.Create(ctx, podKey("b"), &example.Pod{}, nil, 0)
	if _, after := apierrors.SuggestsClientDelay(err); !apierrors.IsServiceUnavailable(err) || !after {
		t.Errorf("write without a leader: %v", err)
	}
	if _, err := r.client.KV.Get(ctx, "x"); !errors.Is(err, rpctypes.ErrNoLeader) {
		t.Errorf("the etcd interface gave %v, want %v", err, rpctypes.ErrNoLeader)
	}
}

func TestElectionPassesUnnoticed(t *testing.T) {
	r, m := moodyRig(t, storage.Options{})
	m.set(errors.New("leader is not known"), nil, 3)
	create(t, r, "a")
	if m.calls != 4 {
		t.Errorf("%d proposals, want three refused and one made", m.calls)
	}
}

func TestUnknownOutcomeIsNeverRepeated(t *testing.T) {
	r, m := moodyRig(t, storage.Options{})
	m.set(fmt.Errorf("leadership lost: %w", store.ErrUnknownOutcome), nil, -1)
	err := r.storage.Create(context.Background(), podKey("a"), &example.Pod{}, nil, 0)
	if !apierrors.IsTimeout(err) {
		t.Errorf("got %v, want a time-out", err)
	}
	if _, after := apierrors.SuggestsClientDelay(err); after {
		t.Error("a client is told to repeat a write that may have been made")
	}
	if m.calls != 1 {
		t.Errorf("the write was proposed %d times", m.calls)
	}
}

func TestCallersDeadlineStaysTheirs(t *testing.T) {
	r, m := moodyRig(t, storage.Options{})
	m.set(rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNoLeader, -1)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := r.storage.Get(ctx, podKey("a"), kstorage.GetOptions{}, &example.Pod{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestReadOfHeldRevisionNeedsNoLeader(t *testing.T) {
	r, m := moodyRig(t, quick)
	create(t, r, "a")
	rev := r.store.Revision()
	create(t, r, "b")
	m.set(nil, rpctypes.ErrGRPCNoLeader, -1)
	resp, err := r.client.Kubernetes.List(context.Background(), "/pods/", kubernetes.ListOptions{Revision: rev})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 {
		t.Errorf("%d keys at revision %d, want 1", len(resp.Kvs), rev)
	}
}

// TestCurrentRevisionBringsProgress: whoever asks for the current revision
// waits for a watch to reach it, so the watch says so without being polled.
func TestCurrentRevisionBringsProgress(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := newRig(t, func(o *rigOptions) { o.backend.ProgressInterval = time.Hour })
	asked := r.client.Watch(ctx, "/pods/", clientv3.WithPrefix(), clientv3.WithProgressNotify())
	silent := r.client.Watch(ctx, "/pods/", clientv3.WithPrefix())
	rev := r.increaseRV(ctx, t)
	got, err := r.storage.GetCurrentResourceVersion(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got != uint64(rev) {
		t.Fatalf("current revision %d, want %d", got, rev)
	}
	resp := <-asked
	if !resp.IsProgressNotify() || resp.Header.Revision != rev {
		t.Errorf("watch told %+v, want progress at %d", resp, rev)
	}
	// One that did not ask hears nothing but events.
	create(t, r, "a")
	if resp := <-silent; len(resp.Events) != 1 {
		t.Errorf("watch without progress told %+v", resp)
	}
}

// TestProgressComesAfterTheEvents: progress at a revision is a promise that
// nothing older is still to come.
func TestProgressComesAfterTheEvents(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := newRig(t)
	w := r.client.Watch(ctx, "/pods/", clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithRev(1))
	const n = 3000
	done := make(chan error, 1)
	go func() {
		for i := range n {
			key := fmt.Sprintf("/pods/%d", i)
			if i%3 == 0 {
				key = "elsewhere"
			}
			if _, err := r.client.KV.Put(ctx, key, "v"); err != nil {
				done <- err
				return
			}
			if err := r.client.RequestProgress(ctx); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	var told, progress int64
	for events := 0; events < n*2/3; {
		resp := <-w
		if err := resp.Err(); err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision <= told {
				t.Fatalf("an event of revision %d came after %d", e.Kv.ModRevision, told)
			}
			events++
		}
		if resp.IsProgressNotify() {
			progress++
		}
		told = max(told, resp.Header.Revision)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if progress == 0 {
		t.Error("no progress was told")
	}
}

func TestWatchEndsWhenLeaderIsLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, m := moodyRig(t, storage.Options{LeaderTimeout: time.Millisecond})
	go r.backend.Run(ctx, 0)
	requires := r.client.Watch(clientv3.WithRequireLeader(ctx), "/pods/", clientv3.WithPrefix())
	patient := r.client.Watch(ctx, "/pods/", clientv3.WithPrefix())
	m.set(nil, rpctypes.ErrGRPCNoLeader, -1)
	resp, ok := <-requires
	if !ok || !errors.Is(resp.Err(), rpctypes.ErrNoLeader) {
		t.Fatalf("watch that requires a leader ended with %v", resp.Err())
	}
	if _, ok := <-requires; ok {
		t.Error("the channel is open after its error")
	}
	if r.backend.Healthy() == nil {
		t.Error("the backend says it is healthy")
	}
	m.set(nil, nil, 0)
	create(t, r, "a")
	if resp := <-patient; len(resp.Events) != 1 {
		t.Errorf("the other watch told %+v", resp)
	}
	for r.backend.Healthy() != nil { // the next probe
		select {
		case <-ctx.Done():
			t.Fatal("still unhealthy with a leader")
		case <-time.After(10 * time.Millisecond):
		}
	}
	again, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	next := r.client.Watch(again, "/pods/", clientv3.WithPrefix(), clientv3.WithRev(1))
	if resp := <-next; len(resp.Events) != 1 {
		t.Errorf("a new watch told %+v", resp)
	}
	stop()
	if resp, ok := <-next; ok {
		t.Errorf("a cancelled watch told %+v", resp)
	}
}

func TestCompactedWatchSaysSo(t *testing.T) {
	ctx := context.Background()
	r := newRig(t)
	create(t, r, "a")
	create(t, r, "b")
	if _, err := r.client.Compact(ctx, r.store.Revision()); err != nil {
		t.Fatal(err)
	}
	resp := <-r.client.Watch(ctx, "/pods/", clientv3.WithPrefix(), clientv3.WithRev(1))
	if !errors.Is(resp.Err(), rpctypes.ErrCompacted) || resp.CompactRevision != r.store.CompactRevision() {
		t.Errorf("got %v, compact revision %d", resp.Err(), resp.CompactRevision)
	}
	if _, err := r.client.KV.Get(ctx, "/pods/ns/a", clientv3.WithRev(1)); err != rpctypes.ErrCompacted {
		t.Errorf("a get below the compaction gave %v", err)
	}
}

func TestStreamedRangeEqualsRange(t *testing.T) {
	ctx := context.Background()
	r := newRig(t)
	for i := range 2500 {
		if _, err := r.client.KV.Put(ctx, fmt.Sprintf("/pods/%04d", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int64{0, 1, 1000, 2000, 2500, 3000} {
		opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithLimit(limit)}
		want, err := r.client.KV.Get(ctx, "/pods/", opts...)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := r.client.KV.GetStream(ctx, "/pods/", opts...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := clientv3.GetStreamToGetResponse(stream)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Kvs) != len(want.Kvs) || got.More != want.More || got.Count != want.Count || got.Header.Revision != want.Header.Revision {
			t.Errorf("limit %d: streamed %d keys (more %v, count %d), range gave %d (%v, %d)", limit,
				len(got.Kvs), got.More, got.Count, len(want.Kvs), want.More, want.Count)
		}
	}
}

func TestLeaseThroughTheClient(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := newRig(t)
	l, err := r.client.Grant(ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.KV.Put(ctx, "k", "v", clientv3.WithLease(l.ID)); err != nil {
		t.Fatal(err)
	}
	alive, err := r.client.KeepAlive(ctx, l.ID)
	if err != nil {
		t.Fatal(err)
	}
	if resp := <-alive; resp.TTL != 600 {
		t.Errorf("keep-alive told %d s", resp.TTL)
	}
	left, err := r.client.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
	if err != nil {
		t.Fatal(err)
	}
	if left.GrantedTTL != 600 || len(left.Keys) != 1 {
		t.Errorf("lease of %d s with %d keys", left.GrantedTTL, len(left.Keys))
	}
	if _, err := r.client.Revoke(ctx, l.ID); err != nil {
		t.Fatal(err)
	}
	if resp, err := r.client.KV.Get(ctx, "k"); err != nil || len(resp.Kvs) != 0 {
		t.Errorf("the key outlived its lease: %v, %v", resp, err)
	}
	if _, err := r.client.KeepAliveOnce(ctx, l.ID); err != rpctypes.ErrLeaseNotFound {
		t.Errorf("keep-alive of a revoked lease: %v", err)
	}
}

func TestRunCompacts(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := newRig(t)
	for i := range 10 {
		create(t, r, fmt.Sprint(i))
	}
	before := r.store.Revision()
	done := make(chan struct{})
	go func() { defer close(done); r.backend.Run(ctx, 20*time.Millisecond) }()
	for r.backend.CompactRevision() < before {
		select {
		case <-ctx.Done():
			t.Fatalf("compacted at %d only", r.backend.CompactRevision())
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	<-done
}

func TestClosedClientEndsItsWatches(t *testing.T) {
	r := newRig(t)
	client, stop := r.backend.Client()
	w := client.Watch(context.Background(), "/pods/", clientv3.WithPrefix())
	stop()
	if _, ok := <-w; ok {
		t.Error("a watch of a closed client told something")
	}
	resp := <-client.Watch(context.Background(), "/pods/", clientv3.WithPrefix())
	if resp.Err() == nil {
		t.Error("a closed client started a watch")
	}
}

// plainGetter gives REST options with one decorator, as upstream's do.
type plainGetter struct {
	o generic.RESTOptions
}

func (g plainGetter) GetRESTOptions(schema.GroupResource, runtime.Object) (generic.RESTOptions, error) {
	return g.o, nil
}

func TestWrapKeepsTheChoiceOfCache(t *testing.T) {
	r := newRig(t)
	config := storagebackend.NewDefaultConfig("/registry", r.codec)
	for _, c := range []struct {
		decorator generic.StorageDecorator
		cached    bool
	}{{generic.UndecoratedStorage, false}, {registry.StorageWithCacher(), true}} {
		o, err := r.backend.Wrap(plainGetter{generic.RESTOptions{Decorator: c.decorator}}).GetRESTOptions(pods, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, destroy, err := o.Decorator(config.ForResource(pods), "/pods", func(obj runtime.Object) (string, error) {
			return kstorage.NamespaceKeyFunc("/pods", obj)
		}, newPod, newPodList, podAttrs, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.(*cacher.CacheDelegator); ok != c.cached {
			t.Errorf("storage is %T, cached should be %v", s, c.cached)
		}
		destroy()
		destroy() // subresources do so too
	}
}

// TestWrapEncryptsAtRest: the transformer that upstream chose for a resource
// stands between its objects and the store.
func TestWrapEncryptsAtRest(t *testing.T) {
	ctx := context.Background()
	r := newRig(t)
	config := storagebackend.NewDefaultConfig("/registry", r.codec)
	config.Transformer = storagetesting.NewPrefixTransformer([]byte("sealed:"), false)
	s, destroy, err := r.backend.Storage(config.ForResource(pods), newPod, newPodList, "/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	pod, out := &example.Pod{}, &example.Pod{}
	pod.Name, pod.Namespace = "a", "ns"
	if err := s.Create(ctx, podKey("a"), pod, nil, 0); err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.KV.Get(ctx, "/registry/pods/ns/a")
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 || !bytes.HasPrefix(resp.Kvs[0].Value, []byte("sealed:")) {
		t.Errorf("the store holds %q", resp.Kvs)
	}
	if err := s.Get(ctx, podKey("a"), kstorage.GetOptions{}, out); err != nil || out.Name != "a" {
		t.Errorf("read back %q, %v", out.Name, err)
	}
}
