package etcdapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tripod-cluster/tripod/store"
)

// newAuthRig is newRig with authentication: root, and alice, who may read and
// write from a to m. Passwords are names.
func newAuthRig(t *testing.T, change func(*Config)) *rig {
	g := newRig(t, func(c *Config) {
		c.BcryptCost = bcrypt.MinCost
		if change != nil {
			change(c)
		}
	})
	c, ctx := g.client, testContext(t)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.UserAdd(ctx, "root", "root"))
	must(c.UserGrantRole(ctx, "root", "root"))
	must(c.RoleAdd(ctx, "half"))
	must(c.RoleGrantPermission(ctx, "half", "a", "m", clientv3.PermissionType(clientv3.PermReadWrite)))
	must(c.UserAdd(ctx, "alice", "alice"))
	must(c.UserGrantRole(ctx, "alice", "half"))
	must(c.AuthEnable(ctx))
	return g
}

// as returns a client that logs in with a name.
func (g *rig) as(t *testing.T, user string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: g.client.Endpoints(), DialTimeout: patience, Username: user, Password: user, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientWithPassword(t *testing.T) {
	g := newAuthRig(t, nil)
	ctx := testContext(t)
	root, alice := g.as(t, "root"), g.as(t, "alice")
	if _, err := alice.Put(ctx, "b", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Put(ctx, "z", "1"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a key of others: %v", err)
	}
	if _, err := g.client.Put(ctx, "b", "1"); !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("without a name: %v", err)
	}
	if _, err := clientv3.New(clientv3.Config{Endpoints: g.client.Endpoints(), Username: "alice", Password: "guess", Logger: zap.NewNop()}); !errors.Is(err, rpctypes.ErrAuthFailed) {
		t.Errorf("a wrong password: %v", err)
	}
	if w := <-alice.Watch(ctx, "z"); w.Err() == nil || w.Err().Error() != rpctypes.ErrGRPCPermissionDenied.Error() {
		t.Errorf("a watch of others' keys: %v", w.Err())
	}

	// Tokens are as of now, or end: the client logs in again by itself.
	watch := alice.Watch(ctx, "b")
	if _, err := root.UserChangePassword(ctx, "alice", "alice"); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Put(ctx, "b", "2"); err != nil {
		t.Errorf("after the token has ended: %v", err)
	}
	if r := recv(t, watch); events(r) != "PUT b=2" {
		t.Errorf("the watch saw %s", events(r))
	}
	if s, err := root.AuthStatus(ctx); err != nil || !s.Enabled || s.AuthRevision != g.store.Auth().Revision() {
		t.Errorf("status %v, %v", s, err)
	}
	if _, err := root.AuthDisable(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := g.client.Put(ctx, "z", "1"); err != nil {
		t.Errorf("after it was disabled: %v", err)
	}
}

// between is a proposer that does something before the next request is applied.
type between struct {
	store.Proposer
	first func()
}

func (b *between) Propose(ctx context.Context, r *pb.InternalRaftRequest) (store.Result, error) {
	if f := b.first; f != nil {
		b.first = nil
		f()
	}
	return b.Proposer.Propose(ctx, r)
}

// What a user may do is decided where the request has its place in the order
// of all, and not where it came in.
func TestPermissionWhenApplied(t *testing.T) {
	var b *between
	g := newAuthRig(t, func(c *Config) {
		b = &between{Proposer: c.Proposer}
		c.Proposer = b
	})
	ctx := testContext(t)
	token := g.login(t, "alice")
	ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
	revoke := &pb.InternalRaftRequest{AuthUserRevokeRole: &pb.AuthUserRevokeRoleRequest{Name: "alice", Role: "half"}}
	b.first = func() { g.apply(t, revoke) }
	if _, err := pb.NewKVClient(g.conn).Put(ctx, &pb.PutRequest{Key: []byte("b")}); !errors.Is(err, rpctypes.ErrGRPCAuthOldRevision) {
		t.Errorf("put with a role that was revoked meanwhile: %v", err)
	}
	if _, err := pb.NewKVClient(g.conn).Put(ctx, &pb.PutRequest{Key: []byte("b")}); !errors.Is(err, rpctypes.ErrGRPCPermissionDenied) {
		t.Errorf("put without the role: %v", err)
	}
	// A request that came in when everything was allowed, too.
	g.apply(t, &pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}})
	b.first = func() { g.apply(t, &pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}}) }
	if _, err := pb.NewKVClient(g.conn).Put(testContext(t), &pb.PutRequest{Key: []byte("b")}); !errors.Is(err, rpctypes.ErrGRPCUserEmpty) {
		t.Errorf("put of nobody while authentication is enabled: %v", err)
	}
	if g.store.Revision() != 1 {
		t.Error("something was written")
	}
}

func (g *rig) login(t *testing.T, user string) string {
	t.Helper()
	r, err := pb.NewAuthClient(g.conn).Authenticate(testContext(t), &pb.AuthenticateRequest{Name: user, Password: user})
	if err != nil {
		t.Fatal(err)
	}
	return r.Token
}

// apply is a request of this program itself.
func (g *rig) apply(t *testing.T, r *pb.InternalRaftRequest) {
	t.Helper()
	if res, err := g.flaky.Propose(testContext(t), r); err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
}

func TestTrustedServerAsksNothing(t *testing.T) {
	g := newAuthRig(t, nil)
	srv := g.server.TrustedGRPCServer()
	l, err := net.Listen("unix", t.TempDir()+"/trusted.sock")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)
	defer srv.Stop()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := testContext(t)
	kv := pb.NewKVClient(conn)
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("z")}); err != nil {
		t.Error(err)
	}
	if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("z")}); err != nil {
		t.Error(err)
	}
	if _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: 2}); err != nil {
		t.Error(err)
	}
	if m := (&rig{conn: conn}).raw(t, ctx).create(&pb.WatchCreateRequest{Key: []byte("z")}); m.Canceled {
		t.Errorf("watch: %v", m)
	}
}

func TestCertificateNamesUser(t *testing.T) {
	g := newAuthRig(t, func(c *Config) { c.ClientCertAuth = true })
	cert := func(name string) context.Context {
		state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: name}}}}}
		ctx := peer.NewContext(testContext(t), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
		return metadata.NewIncomingContext(ctx, metadata.MD{})
	}
	with := func(ctx context.Context, k, v string) context.Context {
		return metadata.NewIncomingContext(ctx, metadata.Pairs(k, v))
	}
	revision := g.store.Auth().Revision()
	for _, c := range []struct {
		name string
		ctx  context.Context
		want store.AuthInfo
		err  error
	}{
		{"alice's certificate", cert("alice"), store.AuthInfo{Username: "alice", Revision: revision}, nil},
		{"a certificate without name", cert(""), store.AuthInfo{Revision: revision}, nil},
		{"a token is asked first", with(cert("alice"), rpctypes.TokenFieldNameGRPC, g.login(t, "root")), store.AuthInfo{Username: "root", Revision: revision}, nil},
		{"a bad token", with(cert("alice"), rpctypes.TokenFieldNameGRPC, "x.1"), store.AuthInfo{}, rpctypes.ErrGRPCInvalidAuthToken},
		{"a bearer's token", with(cert("alice"), rpctypes.TokenFieldNameSwagger, "Bearer "+g.login(t, "root")), store.AuthInfo{Username: "root", Revision: revision}, nil},
		{"the gateway's certificate", with(cert("alice"), "grpcgateway-accept", "*/*"), store.AuthInfo{}, nil},
		{"no TLS", metadata.NewIncomingContext(testContext(t), metadata.MD{}), store.AuthInfo{}, nil},
	} {
		if got, err := g.server.caller(c.ctx); got.AuthInfo != c.want || got.trusted || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got, err, c.want, c.err)
		}
	}
	g.server.cfg.ClientCertAuth = false
	if got, err := g.server.caller(cert("alice")); got != (caller{}) || err != nil {
		t.Errorf("where certificates name nobody: %+v, %v", got, err)
	}
}

// A simple token is good for its time since it was last used.
func TestSimpleTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(store.Options{})
		tokens := newSimpleTokens(time.Minute)
		good := func(word string) bool {
			_, ok := tokens.info(t.Context(), word, s.Auth, func(context.Context) error { return nil })
			return ok
		}
		tokens.follow(store.TokenChange{Kind: store.TokenAssigned, User: "alice", Token: "a.1"})
		tokens.follow(store.TokenChange{Kind: store.TokenAssigned, User: "bob", Token: "b.2"})
		time.Sleep(50 * time.Second)
		if !good("a.1") {
			t.Error("it has ended before its time")
		}
		time.Sleep(50 * time.Second)
		if !good("a.1") || good("b.2") {
			t.Error("one was used and is good; one was not and is not")
		}
		for n := range 2 * minSweep {
			tokens.follow(store.TokenChange{Kind: store.TokenAssigned, User: "carol", Token: string(rune('c' + n))})
		}
		if tokens.tokens["b.2"] != nil {
			t.Error("what has ended is kept")
		}
		tokens.follow(store.TokenChange{Kind: store.UserTokensEnded, User: "alice"})
		if good("a.1") {
			t.Error("the user is gone and the token good")
		}
	})
}

// A token that another member has assigned is waited for.
func TestTokenOfAnotherMember(t *testing.T) {
	g := newAuthRig(t, nil)
	tokens := newSimpleTokens(0)
	rounds := 0
	info := func(word string) (store.AuthInfo, bool) {
		return tokens.info(t.Context(), word, g.store.Auth, func(context.Context) error {
			rounds++
			tokens.follow(store.TokenChange{Kind: store.TokenAssigned, User: "alice", Token: "word.1"})
			return nil
		})
	}
	if who, ok := info("word.1"); !ok || who.Username != "alice" || rounds != 1 {
		t.Errorf("%+v, %v after %d rounds", who, ok, rounds)
	}
	g.login(t, "alice")
	for _, word := range []string{"word.0", "other.1", "word", "word.x", ""} {
		if _, ok := info(word); ok || rounds != 1 {
			t.Errorf("%q: %v after %d rounds; what was applied here needs none", word, ok, rounds)
		}
	}
}
