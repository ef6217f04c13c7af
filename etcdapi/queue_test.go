package etcdapi

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/status"
)

// A lock goes from one to the next in the order of their coming, also between
// the service and etcd's client library, which use the same keys.
func TestLock(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	locks := v3lockpb.NewLockClient(g.conn)
	first, err := locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("n")})
	if err != nil {
		t.Fatal(err)
	}
	session, err := concurrency.NewSession(g.client)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "n")
	locked := make(chan error, 1)
	go func() { locked <- mutex.Lock(ctx) }()
	queued := func(n int64) {
		t.Helper()
		eventually(t, func() bool {
			r, err := g.client.Get(ctx, "n/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err == nil && r.Count == n
		})
	}
	queued(2)
	gone, leave := context.WithCancel(ctx)
	third := make(chan error, 1)
	go func() {
		_, err := locks.Lock(gone, &v3lockpb.LockRequest{Name: []byte("n")})
		third <- err
	}()
	queued(3)
	leave()
	if err := <-third; err == nil {
		t.Error("one who left got the lock")
	}
	queued(2) // its place went with it
	if _, err := locks.Unlock(ctx, &v3lockpb.UnlockRequest{Key: first.Key}); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	if err := mutex.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	again, err := locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("n")})
	if err != nil || string(again.Key) == string(first.Key) {
		t.Errorf("%v, %v", again, err)
	}
}

func TestElection(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	elections := v3electionpb.NewElectionClient(g.conn)
	name := []byte("n")
	if _, err := elections.Leader(ctx, &v3electionpb.LeaderRequest{Name: name}); status.Convert(err).Message() != "election: no leader" {
		t.Errorf("before there is one: %v", err)
	}
	watching, err := elections.Observe(ctx, &v3electionpb.LeaderRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	sees := func(want string) {
		t.Helper()
		r, err := watching.Recv()
		if err != nil || string(r.Kv.Value) != want {
			t.Fatalf("the observer sees %v, %v, want %q", r, err, want)
		}
	}
	a, err := elections.Campaign(ctx, &v3electionpb.CampaignRequest{Name: name, Value: []byte("a")})
	if err != nil {
		t.Fatal(err)
	}
	sees("a")
	if _, err := elections.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: a.Leader, Value: []byte("a2")}); err != nil {
		t.Fatal(err)
	}
	sees("a2")
	elected := make(chan *v3electionpb.CampaignResponse, 1)
	go func() {
		b, err := elections.Campaign(ctx, &v3electionpb.CampaignRequest{Name: name, Value: []byte("b")})
		if err != nil {
			t.Error(err)
		}
		elected <- b
	}()
	eventually(t, func() bool {
		r, err := g.client.Get(ctx, "n/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && r.Count == 2
	})
	if l, err := elections.Leader(ctx, &v3electionpb.LeaderRequest{Name: name}); err != nil || string(l.Kv.Value) != "a2" {
		t.Errorf("leader %v, %v", l, err)
	}
	if _, err := elections.Resign(ctx, &v3electionpb.ResignRequest{Leader: a.Leader}); err != nil {
		t.Fatal(err)
	}
	sees("b")
	b := <-elected
	if _, err := elections.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: a.Leader, Value: []byte("late")}); status.Convert(err).Message() != "election: not leader" {
		t.Errorf("who resigned proclaims: %v", err)
	}
	if _, err := elections.Proclaim(ctx, &v3electionpb.ProclaimRequest{}); status.Convert(err).Message() != `"leader" field must be provided` {
		t.Errorf("without a leader: %v", err)
	}
	if again, err := elections.Campaign(ctx, &v3electionpb.CampaignRequest{Name: name, Lease: b.Leader.Lease, Value: []byte("b2")}); err != nil || again.Leader.Rev != b.Leader.Rev {
		t.Errorf("the leader campaigns again: %v, %v", again, err)
	}
	sees("b2")
}
