package etcdapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestClientLease(t *testing.T) {
	g := newRig(t, nil)
	c, ctx := g.client, testContext(t)
	l, err := c.Grant(ctx, 60)
	if err != nil || l.TTL != 60 {
		t.Fatal(l, err)
	}
	for _, k := range []string{"b", "a"} {
		if _, err := c.Put(ctx, k, "v", clientv3.WithLease(l.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := c.KeepAliveOnce(ctx, l.ID); err != nil || r.TTL != 60 {
		t.Errorf("keep alive: %v, %v", r, err)
	}
	ttl, err := c.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
	if err != nil || ttl.GrantedTTL != 60 || ttl.TTL != 59 || len(ttl.Keys) != 2 || string(ttl.Keys[0]) != "a" {
		t.Errorf("time to live: %+v, %v", ttl, err)
	}
	if ls, err := c.Leases(ctx); err != nil || len(ls.Leases) != 1 || ls.Leases[0].ID != l.ID {
		t.Errorf("leases: %+v, %v", ls, err)
	}
	w := c.Watch(ctx, "", clientv3.WithFromKey(), clientv3.WithRev(4))
	if _, err := c.Revoke(ctx, l.ID); err != nil {
		t.Fatal(err)
	}
	if r := recv(t, w); events(r) != "DELETE a= DELETE b=" {
		t.Errorf("events of the revocation: %s", events(r))
	}
	if ttl, err := c.TimeToLive(ctx, l.ID); err != nil || ttl.TTL != -1 {
		t.Errorf("time to live of no lease: %+v, %v", ttl, err)
	}
	if _, err := c.KeepAliveOnce(ctx, l.ID); err != rpctypes.ErrLeaseNotFound {
		t.Errorf("keep no lease alive: %v", err)
	}
	if _, err := c.Revoke(ctx, l.ID); err != rpctypes.ErrLeaseNotFound {
		t.Errorf("revoke no lease: %v", err)
	}
}

// etcd's own recipes on top of leases, transactions and watches.
func TestLockAndElection(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	session := func() *concurrency.Session {
		s, err := concurrency.NewSession(g.client, concurrency.WithTTL(60), concurrency.WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := session(), session()

	ma, mb := concurrency.NewMutex(a, "/lock"), concurrency.NewMutex(b, "/lock")
	if err := ma.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := mb.TryLock(ctx); err != concurrency.ErrLocked {
		t.Errorf("a second holder: %v", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- mb.Lock(ctx) }()
	if err := ma.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Errorf("the lock did not pass on: %v", err)
	}

	ea, eb := concurrency.NewElection(a, "/election"), concurrency.NewElection(b, "/election")
	if err := ea.Campaign(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	won := make(chan error, 1)
	go func() { won <- eb.Campaign(ctx, "b") }()
	observed := eb.Observe(ctx)
	if r := <-observed; string(r.Kvs[0].Value) != "a" {
		t.Errorf("leader %s", r.Kvs[0].Value)
	}
	// The session ends, its lease is revoked, and the other is elected.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	if r, err := eb.Leader(ctx); err != nil || string(r.Kvs[0].Value) != "b" {
		t.Errorf("leader %v, %v", r, err)
	}
}

func TestClusterAndMaintenance(t *testing.T) {
	g := newRig(t, func(c *Config) { c.QuotaBytes = 1 << 30 })
	c, ctx := g.client, testContext(t)
	c.Put(ctx, "k", "v")
	g.cluster.index.Store(12)
	m, err := c.MemberList(ctx)
	if err != nil || len(m.Members) != 1 || m.Members[0].Name != "eight" || m.Members[0].ID != 8 {
		t.Errorf("members: %+v, %v", m, err)
	}
	if _, err := c.MemberAdd(ctx, []string{"https://10.0.0.9:2380"}); err == nil || !strings.Contains(err.Error(), "controld join") {
		t.Errorf("member add: %v", err)
	}
	ep := c.Endpoints()[0]
	st, err := c.Status(ctx, ep)
	if err != nil || st.Leader != 8 || st.RaftIndex != 12 || st.RaftAppliedIndex != 12 || st.RaftTerm != 3 || st.DbSize <= g.store.Size() || st.DbSizeInUse != st.DbSize || st.DbSizeQuota != 1<<30 || !strings.HasPrefix(st.Version, "3.7.") || len(st.Errors) != 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
	if _, err := c.Defragment(ctx, ep); err != nil {
		t.Errorf("defragment: %v", err)
	}
	h1, err := c.HashKV(ctx, ep, 0)
	if err != nil || h1.HashRevision != 2 || h1.CompactRevision != -1 || h1.Hash == 0 {
		t.Errorf("hash: %+v, %v", h1, err)
	}
	c.Put(ctx, "k", "w")
	if h2, err := c.HashKV(ctx, ep, 2); err != nil || h2.Hash != h1.Hash {
		t.Errorf("hash at the same revision: %+v, %v", h2, err)
	}
	if _, err := pb.NewMaintenanceClient(g.conn).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 8, Alarm: pb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "k", "x"); err != rpctypes.ErrNoSpace {
		t.Errorf("put without space: %v", err)
	}
	if st, err := c.Status(ctx, ep); err != nil || len(st.Errors) != 1 || !strings.Contains(st.Errors[0], "NOSPACE") {
		t.Errorf("status: %+v, %v", st, err)
	}
	if a, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil || len(a.Alarms) != 1 {
		t.Errorf("disarm: %+v, %v", a, err)
	}
	if _, err := c.Put(ctx, "k", "x"); err != nil {
		t.Errorf("put with space again: %v", err)
	}
	if a, err := c.AuthStatus(ctx); err != nil || a.Enabled {
		t.Errorf("auth status: %+v, %v", a, err)
	}
	if _, err := c.MoveLeader(ctx, 9); err == nil || !strings.Contains(err.Error(), "controld") {
		t.Errorf("move leader: %v", err)
	}
}

func TestGRPCHealth(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	h := healthpb.NewHealthClient(g.conn)
	r, err := h.Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", r, err)
	}
	g.server.Close()
	if r, err := h.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("after Close: %v, %v", r, err)
	}
}

// Close ends streams, so that a graceful stop has nothing to wait for.
func TestCloseEndsStreams(t *testing.T) {
	g := newRig(t, nil)
	r := g.raw(t, testContext(t))
	r.create(&pb.WatchCreateRequest{Key: []byte("a")})
	g.server.Close()
	if _, err := r.Recv(); rpctypes.Error(err) != rpctypes.ErrStopped {
		t.Errorf("stream ended with %v", err)
	}
}

func TestHTTP(t *testing.T) {
	g := newRig(t, func(c *Config) { c.RequestTimeout = 50 * time.Millisecond })
	ctx := testContext(t)
	srv := httptest.NewServer(g.server.Handler())
	defer srv.Close()
	get := func(path string) (int, string) {
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	health := func(path, want string, code int) {
		t.Helper()
		got, body := get(path)
		var h struct{ Health, Reason string }
		if err := json.Unmarshal([]byte(body), &h); err != nil || got != code || h.Health != want {
			t.Errorf("%s: %d %s, want %d %s", path, got, body, code, want)
		}
	}
	health("/health", "true", 200)
	if code, body := get("/version"); code != 200 || !strings.Contains(body, `"etcdserver":"3.7.`) {
		t.Errorf("/version: %d %s", code, body)
	}
	g.client.Put(ctx, "k", "v")
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "\netcd_server_has_leader 1\n") || !strings.Contains(body, "\netcd_debugging_mvcc_keys_total 1\n") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	g.flaky.Proposer.Propose(context.Background(), &pb.InternalRaftRequest{Alarm: &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 8, Alarm: pb.AlarmType_NOSPACE}})
	health("/health", "false", 503)
	health("/health?exclude=NOSPACE", "true", 200)
	g.cluster.leader.Store(0)
	health("/health?exclude=NOSPACE", "false", 503)
	health("/health?exclude=NOSPACE&serializable=true", "true", 200)
	if code, _ := get("/readyz"); code != 503 {
		t.Errorf("/readyz: %d", code)
	}
	if code, _ := get("/livez"); code != 200 {
		t.Errorf("/livez: %d", code)
	}
	g.cluster.leader.Store(8)
	g.flaky.Proposer = hung{}
	health("/health?exclude=NOSPACE", "false", 503)
}
