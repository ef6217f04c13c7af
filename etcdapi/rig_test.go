package etcdapi

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tripod-cluster/tripod/store"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// fakeCluster is a cluster of one, whose leader can be taken away.
type fakeCluster struct {
	leader  atomic.Uint64
	learner atomic.Bool
	index   atomic.Uint64
	behind  atomic.Uint64 // entries committed and not applied
}

func (f *fakeCluster) ClusterID() uint64    { return 77 }
func (f *fakeCluster) Self() uint64         { return 8 }
func (f *fakeCluster) Learner() bool        { return f.learner.Load() }
func (f *fakeCluster) Leader() uint64       { return f.leader.Load() }
func (f *fakeCluster) Term() uint64         { return 3 }
func (f *fakeCluster) Index() uint64        { return f.index.Load() + f.behind.Load() }
func (f *fakeCluster) AppliedIndex() uint64 { return f.index.Load() }
func (f *fakeCluster) Members() []Member {
	return []Member{{ID: 8, Name: "eight", PeerURLs: []string{"https://10.0.0.8:2380"}, ClientURLs: []string{"https://10.0.0.8:2379"}}}
}

// fakeLeaser keeps the time of leases in memory; expire is the time passing.
type fakeLeaser struct {
	p      store.Proposer
	s      *store.Store
	mu     sync.Mutex
	lastID int64
	alive  map[int64]int // renewals
}

func (f *fakeLeaser) Grant(ctx context.Context, id, ttl int64) (*pb.LeaseGrantResponse, error) {
	f.mu.Lock()
	if id == 0 {
		f.lastID++
		id = 1000 + f.lastID
	}
	f.mu.Unlock()
	res, err := f.p.Propose(ctx, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: id, TTL: ttl}})
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, res.Err
	}
	return res.Response.(*pb.LeaseGrantResponse), nil
}

func (f *fakeLeaser) Revoke(ctx context.Context, id int64) (*pb.LeaseRevokeResponse, error) {
	res, err := f.p.Propose(ctx, &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}})
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, res.Err
	}
	return res.Response.(*pb.LeaseRevokeResponse), nil
}

func (f *fakeLeaser) KeepAlive(_ context.Context, id int64) (int64, error) {
	l, ok := f.s.Lease(id)
	if !ok {
		return 0, rpctypes.ErrGRPCLeaseNotFound
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.alive[id]++
	return l.TTL, nil
}

func (f *fakeLeaser) TimeToLive(_ context.Context, id int64) (int64, int64, error) {
	l, ok := f.s.Lease(id)
	if !ok {
		return 0, 0, rpctypes.ErrGRPCLeaseNotFound
	}
	return l.TTL, l.TTL - 1, nil
}

// flaky is a proposer whose next answers a test can choose.
type flaky struct {
	store.Proposer
	err atomic.Pointer[error]
}

func (f *flaky) Propose(ctx context.Context, r *pb.InternalRaftRequest) (store.Result, error) {
	if err := f.err.Load(); err != nil {
		return store.Result{}, *err
	}
	return f.Proposer.Propose(ctx, r)
}

func (f *flaky) ReadIndex(ctx context.Context) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.Proposer.ReadIndex(ctx)
}

type rig struct {
	store   *store.Store
	cluster *fakeCluster
	leaser  *fakeLeaser
	flaky   *flaky
	server  *Server
	client  *clientv3.Client
	conn    *grpc.ClientConn
}

// newRig serves an empty store on a unix socket, as in production.
func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	s := store.New(store.Options{})
	g := &rig{store: s, cluster: &fakeCluster{}, flaky: &flaky{Proposer: store.NewLocal(s)}}
	g.cluster.leader.Store(8)
	g.leaser = &fakeLeaser{p: g.flaky, s: s, alive: map[int64]int{}}
	cfg := Config{Store: s, Proposer: g.flaky, Leaser: g.leaser, Cluster: g.cluster}
	if change != nil {
		change(&cfg)
	}
	g.server = New(cfg)
	sock := filepath.Join(t.TempDir(), "etcd.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := g.server.NewGRPCServer()
	go srv.Serve(l)
	g.client, err = clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + sock}, DialTimeout: patience, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	g.conn, err = grpc.NewClient("unix://"+sock, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.client.Close()
		g.conn.Close()
		g.server.Close()
		srv.GracefulStop()
	})
	return g
}

// ctx ends when the test has waited too long.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// fill puts n keys without going through the API.
func (g *rig) fill(t testing.TB, n int) {
	for i := range n {
		r := &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "k%05d", i), Value: make([]byte, 1000)}}
		if res, err := g.flaky.Proposer.Propose(context.Background(), r); err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
	}
}

// eventually waits for what something else makes true.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("gave up waiting")
		}
	}
}
