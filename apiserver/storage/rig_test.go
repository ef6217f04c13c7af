package storage_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/tripod-cluster/tripod/apiserver/internal/localleaser"
	"github.com/tripod-cluster/tripod/apiserver/storage"
	"github.com/tripod-cluster/tripod/store"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
	pods   = schema.GroupResource{Resource: "pods"}
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

func newPod() runtime.Object     { return &example.Pod{} }
func newPodList() runtime.Object { return &example.PodList{} }

// rig is a store with a backend, and one resource's storage on it.
type rig struct {
	storage kstorage.Interface
	client  *kubernetes.Client
	backend *storage.Backend
	store   *store.Store
	codec   runtime.Codec

	transformer *swappable
	lists       *storagetesting.KubernetesRecorder
	reads       *readCounter
}

type rigOptions struct {
	codec       runtime.Codec
	transformer value.Transformer
	wrap        func(store.Proposer) store.Proposer
	backend     storage.Options
}

func newRig(t testing.TB, configure ...func(*rigOptions)) *rig {
	t.Helper()
	o := rigOptions{
		codec:       apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		transformer: storagetesting.NewPrefixTransformer([]byte("test!"), false),
		wrap:        func(p store.Proposer) store.Proposer { return p },
		backend:     storage.Options{ProgressInterval: 200 * time.Millisecond},
	}
	for _, c := range configure {
		c(&o)
	}
	s := store.New(store.Options{})
	p := o.wrap(store.NewLocal(s))
	o.backend.Store, o.backend.Proposer, o.backend.Leaser = s, p, localleaser.New(s, p)
	b, err := storage.New(o.backend)
	if err != nil {
		t.Fatal(err)
	}
	client, stop := b.Client()
	t.Cleanup(stop)
	r := &rig{client: client, backend: b, store: s, codec: o.codec, transformer: &swappable{next: o.transformer}}
	r.lists = storagetesting.NewKubernetesRecorder(client.Kubernetes)
	r.reads = &readCounter{Interface: r.lists}
	client.Kubernetes = r.reads
	client.KV = storagetesting.NewKVRecorder(client.KV, r.lists)
	versioner := kstorage.APIObjectVersioner{}
	raw, err := etcd3.New(client, b, o.codec, newPod, newPodList, "", "/pods/", pods, r.transformer,
		etcd3.LeaseManagerConfig{ReuseDurationSeconds: 1, MaxObjectCount: 1000}, etcd3.NewDefaultDecoder(o.codec, versioner), versioner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	r.storage = raw
	return r
}

// compact is what the suite calls to drop history up to a resource version. It
// counts on upstream's way to compact, which is one write at first and one more
// each time.
func (r *rig) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rev, err := kstorage.APIObjectVersioner{}.ParseResourceVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := etcd3.Compact(ctx, r.client.Client, 0, int64(rev)); err != nil {
		t.Fatalf("compact at %d: %v", rev, err)
	}
}

// increaseRV makes a change outside of the resource.
func (r *rig) increaseRV(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	resp, err := r.client.KV.Put(ctx, "another key", "ok")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// stored checks that the bytes under key are an object without the metadata
// that belongs to the store.
func (r *rig) stored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	resp, err := r.client.KV.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 {
		t.Fatalf("%d keys under %s, want 1", len(resp.Kvs), key)
	}
	data, _, err := r.transformer.TransformFromStorage(ctx, resp.Kvs[0].Value, value.DefaultContext(key))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := runtime.Decode(r.codec, data)
	if err != nil {
		t.Fatal(err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("stored object carries resource version %q, self link %q", pod.ResourceVersion, pod.SelfLink)
	}
}

// calls checks how often a paginated list read: pages double until they are
// full, up to 10,000 objects.
func (r *rig) calls(t *testing.T, pageSize, objects uint64) {
	t.Helper()
	prefix := r.transformer.get().(*storagetesting.PrefixTransformer)
	if got := prefix.GetReadsAndReset(); got != objects {
		t.Errorf("%d objects were read, want %d", got, objects)
	}
	want := uint64(1)
	if pageSize != 0 {
		for page, sum := pageSize, uint64(1); sum < objects; want++ {
			page = min(2*page, 10000)
			sum += page
		}
	}
	kv := r.client.KV.(*storagetesting.KVRecorder)
	if got := r.reads.n.Swap(0) + kv.GetReadsAndReset() + kv.GetStreamReadsAndReset(); got != want {
		t.Errorf("list made %d reads, want %d", got, want)
	}
}

// readCounter counts gets and lists.
type readCounter struct {
	kubernetes.Interface
	n atomic.Uint64
}

func (c *readCounter) Get(ctx context.Context, key string, o kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	c.n.Add(1)
	return c.Interface.Get(ctx, key, o)
}

func (c *readCounter) List(ctx context.Context, prefix string, o kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	c.n.Add(1)
	return c.Interface.List(ctx, prefix, o)
}

// swappable is a transformer that a test can replace under a running store.
type swappable struct {
	mu   sync.RWMutex
	next value.Transformer
}

func (s *swappable) get() value.Transformer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.next
}

func (s *swappable) set(t value.Transformer) (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.next
	s.next = t
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.next = before
	}
}

func (s *swappable) TransformFromStorage(ctx context.Context, data []byte, c value.Context) ([]byte, bool, error) {
	return s.get().TransformFromStorage(ctx, data, c)
}

func (s *swappable) TransformToStorage(ctx context.Context, data []byte, c value.Context) ([]byte, error) {
	return s.get().TransformToStorage(ctx, data, c)
}

// modifiable is the storage whose transformer the suite modifies.
type modifiable struct {
	kstorage.Interface
	r *rig
}

func (m modifiable) UpdatePrefixTransformer(f storagetesting.PrefixTransformerModifier) func() {
	changed := *m.r.transformer.get().(*storagetesting.PrefixTransformer)
	return m.r.transformer.set(f(&changed))
}

func (m modifiable) UpdateTransformer(f storagetesting.TransformerModifier) func() {
	return m.r.transformer.set(f(m.r.transformer.get()))
}

// failing is a transformer or codec that fails while it is told to.
type failing struct {
	value.Transformer
	runtime.Codec
	on atomic.Bool
}

var errSynthetic = errors.New("synthetic error")

func (f *failing) TransformFromStorage(ctx context.Context, data []byte, c value.Context) ([]byte, bool, error) {
	if f.on.Load() {
		return nil, false, errSynthetic
	}
	return f.Transformer.TransformFromStorage(ctx, data, c)
}

func (f *failing) Decode(data []byte, k *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.on.Load() {
		return nil, nil, errSynthetic
	}
	return f.Codec.Decode(data, k, into)
}

// corrupt is the error by which upstream knows an object that cannot be read.
func corrupt() error {
	f := &failing{}
	f.on.Store(true)
	_, _, err := etcd3.WithCorruptObjErrorHandlingTransformer(f).TransformFromStorage(context.Background(), nil, nil)
	return err
}

func podKey(name string) string { return fmt.Sprintf("/pods/ns/%s", name) }
