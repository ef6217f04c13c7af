package etcdapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/store"
)

// tools are etcd's own programs, built once for all tests.
var tools = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "etcd-tools-")
	if err != nil {
		return "", err
	}
	for name, pkg := range map[string]string{"etcd": "go.etcd.io/etcd/server/v3", "etcdutl": "go.etcd.io/etcd/etcdutl/v3"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if toolsBuilt {
		if dir, _ := tools(); dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

var toolsBuilt bool

// tool is the path of one of etcd's programs.
func tool(t *testing.T, name string) string {
	t.Helper()
	toolsBuilt = true
	dir, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// etcdutl runs it and returns what it prints.
func etcdutl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(tool(t, "etcdutl"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("etcdutl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// realEtcd runs etcd's server on a data directory and returns a client and how to
// stop it.
func realEtcd(t *testing.T, dir string) (*clientv3.Client, func()) {
	t.Helper()
	var ports []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, "http://"+l.Addr().String())
		l.Close()
	}
	cmd := exec.Command(tool(t, "etcd"), "--name", "m", "--data-dir", dir, "--log-level", "warn",
		"--listen-client-urls", ports[0], "--advertise-client-urls", ports[0],
		"--listen-peer-urls", ports[1], "--initial-advertise-peer-urls", "http://127.0.0.1:1", "--initial-cluster", "m=http://127.0.0.1:1")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if t.Failed() {
			t.Logf("etcd's log:\n%s", log.String())
		}
	})
	t.Cleanup(stop)
	c, err := clientv3.New(clientv3.Config{Endpoints: ports[:1], DialTimeout: patience, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if _, err := c.Get(ctx, "ready"); err == nil {
			return c, stop
		}
		if ctx.Err() != nil {
			t.Fatalf("etcd does not serve:\n%s", log.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// saveSnapshot stores what the server sends, as etcdctl does.
func saveSnapshot(t *testing.T, c *clientv3.Client) string {
	t.Helper()
	resp, err := c.SnapshotWithVersion(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Snapshot.Close()
	if !strings.HasPrefix(resp.Version, "3.7") {
		t.Errorf("the version of the snapshot is %q", resp.Version)
	}
	path := filepath.Join(t.TempDir(), "snapshot.db")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, resp.Snapshot); err != nil {
		t.Fatal(err)
	}
	return path
}

// fillHistory makes a history with everything in it: versions, tombstones,
// several changes at a revision, leases with and without keys, compactions.
func fillHistory(t *testing.T, c *clientv3.Client, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	ctx := testContext(t)
	var leases []clientv3.LeaseID
	for id := range clientv3.LeaseID(4) {
		if _, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id) + 100, TTL: 3600 + int64(id)}); err != nil {
			t.Fatal(err)
		}
		leases = append(leases, id+100)
	}
	key := func() string { return fmt.Sprintf("key/%02d", rng.IntN(30)) }
	for i := range 400 {
		var err error
		switch n := rng.IntN(20); {
		case n < 10:
			var opts []clientv3.OpOption
			if rng.IntN(4) == 0 {
				opts = append(opts, clientv3.WithLease(leases[rng.IntN(len(leases))]))
			}
			_, err = c.Put(ctx, key(), strings.Repeat(fmt.Sprint(i), 1+rng.IntN(100)), opts...)
		case n < 14:
			_, err = c.Delete(ctx, key())
		case n < 15:
			_, err = c.Delete(ctx, key(), clientv3.WithRange("key/99"))
		default:
			_, err = c.Txn(ctx).Then(clientv3.OpPut("txn/a", key()), clientv3.OpPut("txn/b", fmt.Sprint(i)), clientv3.OpDelete(key()), clientv3.OpDelete("key/0", clientv3.WithRange("key/02"))).Commit()
			if err != nil && strings.Contains(err.Error(), "duplicate key") {
				err = nil
			}
		}
		if err == nil && i == 250 {
			var r *clientv3.GetResponse
			if r, err = c.Get(ctx, "x"); err == nil {
				_, err = c.Compact(ctx, r.Header.Revision-20, clientv3.WithCompactPhysical())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Revoke(ctx, leases[3]); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		second(c.RoleAdd(ctx, "root")), second(c.RoleAdd(ctx, "reader")),
		second(c.RoleGrantPermission(ctx, "reader", "key/", "key0", clientv3.PermissionType(clientv3.PermRead))),
		second(c.UserAdd(ctx, "root", "secret")), second(c.UserGrantRole(ctx, "root", "root")),
		second(c.UserAdd(ctx, "anna", "word")), second(c.UserGrantRole(ctx, "anna", "reader")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Put(ctx, "large", strings.Repeat("x", 1<<20)); err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

// checkUsers enables authentication and looks whether it is as fillHistory set it up.
func checkUsers(t *testing.T, c *clientv3.Client) {
	t.Helper()
	ctx := testContext(t)
	if _, err := c.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	as := func(user, password string) (*clientv3.Client, error) {
		u, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: user, Password: password, DialTimeout: patience, Logger: zap.NewNop()})
		if err == nil {
			t.Cleanup(func() { u.Close() })
		}
		return u, err
	}
	anna, err := as("anna", "word")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Get(ctx, "key/", clientv3.WithPrefix()); err != nil {
		t.Error(err)
	}
	if _, err := anna.Get(ctx, "large"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a key without permission: %v", err)
	}
	if _, err := as("anna", "secret"); !errors.Is(err, rpctypes.ErrAuthFailed) {
		t.Errorf("a wrong password: %v", err)
	}
	root, err := as("root", "secret")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.AuthDisable(ctx); err != nil {
		t.Fatal(err)
	}
}

// content is everything that a client can learn of the keyspace, and of users and
// roles, as text.
func content(t *testing.T, c *clientv3.Client) string {
	t.Helper()
	ctx := testContext(t)
	var b strings.Builder
	now, err := c.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "revision %d\n", now.Header.Revision)
	oldest, changed := int64(0), false
	for rev := now.Header.Revision; rev > 0; rev-- {
		r, err := c.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(rev))
		if err != nil {
			fmt.Fprintf(&b, "%d: %v\n", rev, err)
			break
		}
		changed = changed || oldest > 0
		oldest = rev
		fmt.Fprintf(&b, "%d: %d keys\n", rev, r.Count)
		for _, kv := range r.Kvs {
			changed = changed || kv.ModRevision == rev
			fmt.Fprintf(&b, " %s %d %d %d %x %.40s\n", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, kv.Value)
		}
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for w := range watchIf(changed, func() clientv3.WatchChan {
		return c.Watch(wctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(oldest), clientv3.WithPrevKV())
	}) {
		if err := w.Err(); err != nil {
			t.Fatal(err)
		}
		for _, e := range w.Events {
			fmt.Fprintf(&b, "event %s %s %d %d\n", e.Type, e.Kv.Key, e.Kv.ModRevision, e.PrevKv.GetModRevision())
		}
		if len(w.Events) > 0 && w.Events[len(w.Events)-1].Kv.ModRevision == now.Header.Revision {
			break
		}
	}
	ls, err := c.Leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range ls.Leases {
		ttl, err := c.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "lease %x %d %q\n", l.ID, ttl.GrantedTTL, ttl.Keys)
	}
	users, err := c.UserList(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range users.Users {
		roles, err := c.UserGet(ctx, u)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "user %s %q\n", u, roles.Roles)
	}
	reader, err := c.RoleGet(ctx, "reader")
	if err != nil {
		t.Fatal(err)
	}
	status, err := c.AuthStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "reader %v, auth revision %d\n", reader.Perm, status.AuthRevision)
	return b.String()
}

// watchIf is a watch, or where there is nothing to see one that has ended.
func watchIf(changed bool, watch func() clientv3.WatchChan) clientv3.WatchChan {
	if changed {
		return watch()
	}
	ended := make(chan clientv3.WatchResponse)
	close(ended)
	return ended
}

// sameContent compares, and shows the first difference.
func sameContent(t *testing.T, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("line %d:\n got  %s\n want %s", i, g[i], w[i])
		}
	}
	if len(g) != len(w) {
		t.Fatalf("%d lines, want %d", len(g), len(w))
	}
}

// A snapshot that a client takes from this server is verified by etcdutl, and
// restored and served by an etcd server with the same keys, revisions, history
// and leases.
func TestSnapshotIsServedByEtcd(t *testing.T) {
	g := newRig(t, nil)
	fillHistory(t, g.client, 1)
	want := content(t, g.client)
	path := saveSnapshot(t, g.client)

	status := etcdutl(t, "snapshot", "status", path, "-w", "json")
	if !strings.Contains(status, fmt.Sprintf(`"revision":%d,`, g.store.Revision())) || !strings.Contains(status, `"version":"3.7.0"`) {
		t.Errorf("etcdutl snapshot status: %s", status)
	}
	dir := filepath.Join(t.TempDir(), "data")
	etcdutl(t, "snapshot", "restore", path, "--data-dir", dir, "--name", "m", "--initial-cluster", "m=http://127.0.0.1:1", "--initial-advertise-peer-urls", "http://127.0.0.1:1")
	c, stop := realEtcd(t, dir)
	sameContent(t, content(t, c), want)
	checkUsers(t, c)
	if _, err := c.Put(testContext(t), "after", "x"); err != nil {
		t.Error(err)
	}
	again := content(t, c)
	stop()
	c, _ = realEtcd(t, dir)
	sameContent(t, content(t, c), again)
}

// fakeSnapshotStream keeps what is sent to it, and fails when it has more than limit bytes.
type fakeSnapshotStream struct {
	pb.Maintenance_SnapshotServer
	ctx   context.Context
	limit int64
	sent  []*pb.SnapshotResponse
	bytes []byte
}

var errGone = errors.New("the client went away")

func (f *fakeSnapshotStream) Context() context.Context { return f.ctx }

func (f *fakeSnapshotStream) Send(r *pb.SnapshotResponse) error {
	if int64(len(f.bytes)+len(r.Blob)) > f.limit {
		return errGone
	}
	// Only the codec's copy outlives Send.
	f.bytes = append(f.bytes, r.Blob...)
	f.sent = append(f.sent, &pb.SnapshotResponse{RemainingBytes: r.RemainingBytes, Blob: make([]byte, len(r.Blob)), Version: r.Version})
	return nil
}

// What a snapshot says of its size is what comes: it remains after each message, and
// the checksum comes alone in the end. Messages are small, whatever the values are.
func TestSnapshotMessages(t *testing.T) {
	g := newRig(t, nil)
	for i := range 200 {
		if _, err := g.client.Put(testContext(t), fmt.Sprintf("k%d", i), strings.Repeat("v", []int{0, 1000, 5000, 300_000}[i%4])); err != nil {
			t.Fatal(err)
		}
	}
	out := &fakeSnapshotStream{ctx: testContext(t), limit: math.MaxInt64}
	if err := (&maintenanceServer{s: g.server}).Snapshot(&pb.SnapshotRequest{}, out); err != nil {
		t.Fatal(err)
	}
	content := len(out.bytes) - sha256.Size
	left := uint64(content)
	for i, r := range out.sent[:len(out.sent)-1] {
		left -= uint64(len(r.Blob))
		if r.RemainingBytes != left || len(r.Blob) == 0 || len(r.Blob) > snapshotChunk || r.Version != etcddb.SchemaVersion {
			t.Fatalf("message %d: %d bytes, %d remain, of version %s; want %d to remain", i, len(r.Blob), r.RemainingBytes, r.Version, left)
		}
	}
	if last := out.sent[len(out.sent)-1]; left != 0 || last.RemainingBytes != 0 || len(last.Blob) != sha256.Size || last.Version != etcddb.SchemaVersion {
		t.Errorf("the last message has %d bytes, %d remain after it and %d before", len(last.Blob), last.RemainingBytes, left)
	}
	if sum := sha256.Sum256(out.bytes[:content]); !bytes.Equal(sum[:], out.bytes[content:]) {
		t.Error("the checksum is of something else")
	}
	for _, limit := range []int64{0, int64(content) / 2, int64(content)} {
		out := &fakeSnapshotStream{ctx: testContext(t), limit: limit}
		if err := (&maintenanceServer{s: g.server}).Snapshot(&pb.SnapshotRequest{}, out); !errors.Is(err, errGone) {
			t.Errorf("a client that goes away after %d bytes: %v", limit, err)
		}
	}
}

// A client that does not read holds nobody up, and gets the state of when it asked.
func TestSlowSnapshot(t *testing.T) {
	g := newRig(t, nil)
	for i := range 8 {
		if _, err := g.client.Put(testContext(t), fmt.Sprintf("k%d", i), strings.Repeat("v", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	rev := g.store.Revision()
	slow, err := pb.NewMaintenanceClient(g.conn).Snapshot(testContext(t), &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := slow.Recv() // it was taken
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	gone, err := pb.NewMaintenanceClient(g.conn).Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.client.Put(testContext(t), "k0", "after"); err != nil {
		t.Fatal(err)
	}
	if s, _, err := etcddb.Read(saveSnapshot(t, g.client), etcddb.Options{}); err != nil || s.Revision() != rev+1 {
		t.Fatalf("another client meanwhile: %v", err)
	}
	cancel() // the rig waits for its calls when it stops
	path := filepath.Join(t.TempDir(), "db")
	b := first.Blob
	for {
		r, err := slow.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, r.Blob...)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, _, err := etcddb.Read(path, etcddb.Options{}); err != nil || s.Revision() != rev {
		t.Fatalf("the slow client: %v", err)
	}
}

// serve is a rig that serves the state of another store.
func serve(t *testing.T, s *store.Store) *rig {
	t.Helper()
	g := newRig(t, nil)
	var b bytes.Buffer
	sn := s.Snapshot()
	defer sn.Close()
	if _, err := sn.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := g.store.Restore(&b); err != nil {
		t.Fatal(err)
	}
	return g
}

// A snapshot of an etcd server is served by this one with the same keys,
// revisions, history and leases; also a database copied from its directory, and
// one whose revision was raised.
func TestSnapshotOfEtcdIsServed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	c, stop := realEtcd(t, dir)
	fillHistory(t, c, 2)
	want := content(t, c)
	path := saveSnapshot(t, c)
	stop()

	s, info, err := etcddb.Read(path, etcddb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := serve(t, s)
	sameContent(t, content(t, g.client), want)
	checkUsers(t, g.client)
	if !info.Verified || info.Revision != s.Revision() || info.CompactRevision != s.CompactRevision() || info.Leases != 3 || len(info.Origin.Members) != 1 || info.Origin.Members[0].Name != "m" {
		t.Errorf("%+v", info)
	}

	db := filepath.Join(dir, "member", "snap", "db")
	if _, _, err := etcddb.Read(db, etcddb.Options{}); err == nil || !strings.Contains(err.Error(), "--skip-hash-check") {
		t.Errorf("a database without a checksum: %v", err)
	}
	if s, _, err = etcddb.Read(db, etcddb.Options{SkipHashCheck: true}); err != nil {
		t.Fatal(err)
	}
	sameContent(t, content(t, serve(t, s).client), want)

	raised := filepath.Join(t.TempDir(), "data")
	etcdutl(t, "snapshot", "restore", path, "--data-dir", raised, "--name", "m", "--initial-cluster", "m=http://127.0.0.1:1", "--initial-advertise-peer-urls", "http://127.0.0.1:1",
		"--bump-revision", "1000000", "--mark-compacted")
	if err := s.Rebase(1000000, true); err != nil {
		t.Fatal(err)
	}
	want = content(t, serve(t, s).client)
	if s, _, err = etcddb.Read(filepath.Join(raised, "member", "snap", "db"), etcddb.Options{SkipHashCheck: true}); err != nil {
		t.Fatal(err)
	}
	sameContent(t, content(t, serve(t, s).client), want)
	c, _ = realEtcd(t, raised)
	sameContent(t, content(t, c), want)
}
