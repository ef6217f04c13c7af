package raftfsm

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/store"
)

// patience is how long a test waits for something that must happen: long, since machines under test are
// busy.
const patience = 2 * time.Minute

// testCA issues the certificates of a test cluster.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newTestCA(t testing.TB) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test peers"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	ca := &testCA{cert: cert, key: key, pool: x509.NewCertPool()}
	ca.pool.AddCert(cert)
	return ca
}

func (ca *testCA) issue(t testing.TB, id PeerID) func() (*tls.Config, *tls.Config, error) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: id.String()}, DNSNames: []string{id.String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return func() (*tls.Config, *tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: ca.pool},
			&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: ca.pool}, nil
	}
}

// network cuts connections between peers of one process.
type network struct {
	mu    sync.Mutex
	cut   map[[2]PeerID]bool
	conns map[*faultyConn]struct{}
}

func newNetwork() *network {
	return &network{cut: map[[2]PeerID]bool{}, conns: map[*faultyConn]struct{}{}}
}

func link(a, b PeerID) [2]PeerID { return [2]PeerID{min(a, b), max(a, b)} }

// set cuts or heals the link between two peers, both directions. Open connections break.
func (w *network) set(a, b PeerID, cut bool) {
	w.mu.Lock()
	w.cut[link(a, b)] = cut
	var broken []*faultyConn
	for c := range w.conns {
		if cut && c.link == link(a, b) {
			broken = append(broken, c)
		}
	}
	w.mu.Unlock()
	for _, c := range broken {
		c.Close()
	}
}

// isolate cuts a peer from all others.
func (w *network) isolate(id PeerID, cut bool, all []*peer) {
	for _, p := range all {
		if p.id != id {
			w.set(id, p.id, cut)
		}
	}
}

func (w *network) isCut(l [2]PeerID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[l]
}

type faultyConn struct {
	net.Conn
	w    *network
	link [2]PeerID
}

func (c *faultyConn) Close() error {
	c.w.mu.Lock()
	delete(c.w.conns, c)
	c.w.mu.Unlock()
	return c.Conn.Close()
}

func (w *network) faults(self PeerID) faults {
	return faults{
		dial: func(to PeerID) error {
			if w.isCut(link(self, to)) {
				return errors.New("cut by the test")
			}
			return nil
		},
		conn: func(c net.Conn, peer PeerID) net.Conn {
			f := &faultyConn{Conn: c, w: w, link: link(self, peer)}
			w.mu.Lock()
			cut := w.cut[f.link]
			w.conns[f] = struct{}{}
			w.mu.Unlock()
			if cut {
				f.Close()
			}
			return f
		},
	}
}

// peer is one member of a test cluster, which may be stopped and started.
type peer struct {
	*Node
	cfg   Config
	store *store.Store
	id    PeerID
	fatal chan error
	up    bool
}

// cluster is some peers in this process, with real ports, TLS and disks.
type cluster struct {
	t     testing.TB
	ca    *testCA
	net   *network
	dir   string
	peers []*peer
	tweak func(*Config)
}

func quiet(t testing.TB) *slog.Logger {
	if os.Getenv("RAFTFSM_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// newCluster starts n voters.
func newCluster(t testing.TB, n int, tweak func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, ca: newTestCA(t), net: newNetwork(), dir: t.TempDir(), tweak: tweak}
	t.Cleanup(func() {
		for _, p := range c.peers {
			if p.up {
				p.Node.Close()
			}
		}
	})
	for i := range n {
		p := c.open()
		ctx := c.ctx()
		if i == 0 {
			if err := p.Bootstrap(ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		c.join(p)
	}
	return c
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	c.t.Cleanup(cancel)
	return ctx
}

// open makes a peer that belongs to nothing yet.
func (c *cluster) open() *peer {
	c.t.Helper()
	i := len(c.peers)
	id := PeerID(randomID())
	p := &peer{id: id, fatal: make(chan error, 1)}
	addr := freeAddr(c.t)
	p.cfg = Config{
		Dir: filepath.Join(c.dir, fmt.Sprint("peer", i)), ID: id, Name: fmt.Sprint("p", i),
		ListenPeer: addr, AdvertisePeer: addr, TLS: c.ca.issue(c.t, id),
		Version: "test", Logger: quiet(c.t), MinFreeBytes: 1, RequestTimeout: patience / 2,
		OnFatal: func(err error) { p.fatal <- err },
		faults:  c.net.faults(id),
	}
	if c.tweak != nil {
		c.tweak(&p.cfg)
	}
	c.peers = append(c.peers, p)
	c.start(p)
	return p
}

func (c *cluster) start(p *peer) {
	c.t.Helper()
	p.store = store.New(store.Options{})
	p.cfg.Store = p.store
	n, err := Open(p.cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	p.Node, p.up = n, true
}

func (c *cluster) stop(p *peer) {
	c.t.Helper()
	if err := p.Node.Close(); err != nil {
		c.t.Fatal(err)
	}
	p.up = false
}

func (c *cluster) join(p *peer) {
	c.t.Helper()
	ctx := c.ctx()
	m := Member{ID: p.id, Name: p.cfg.Name, PeerAddr: p.cfg.AdvertisePeer, Version: "test"}
	if err := c.peers[0].AddNonvoter(ctx, m); err != nil {
		c.t.Fatal(err)
	}
	c.until("the new peer is promoted", func() bool {
		err := c.peers[0].Promote(ctx, p.id)
		if err != nil && !errors.Is(err, ErrLagging) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

// until waits for a condition that something else makes true.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	eventually(c.t, what, ok)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

// leader waits for one peer that leads, among those that are up.
func (c *cluster) leader() *peer {
	c.t.Helper()
	var l *peer
	c.until("a peer leads", func() bool {
		for _, p := range c.peers {
			if p.up && p.IsLeader() {
				l = p
				return true
			}
		}
		return false
	})
	return l
}

func (c *cluster) followers() []*peer {
	l := c.leader()
	var out []*peer
	for _, p := range c.peers {
		if p != l && p.up {
			out = append(out, p)
		}
	}
	return out
}

func putReq(k, v string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(k), Value: []byte(v)}}
}

func (p *peer) put(t testing.TB, k, v string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := p.Propose(ctx, putReq(k, v))
	if err == nil {
		err = res.Err
	}
	if err != nil {
		t.Fatalf("put %s at %s: %v", k, p.cfg.Name, err)
	}
}

// get reads the local store.
func (p *peer) get(t testing.TB, k string) string {
	t.Helper()
	r, err := p.store.Range(&pb.RangeRequest{Key: []byte(k)})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// sameState waits until the peers that are up hold the same bytes.
func (c *cluster) sameState() {
	c.t.Helper()
	c.until("all peers hold the same state", func() bool {
		var first []byte
		for i, p := range c.peers {
			if !p.up {
				continue
			}
			b := dump(c.t, p.store)
			if i == 0 || first == nil {
				first = b
			} else if string(first) != string(b) {
				return false
			}
		}
		return true
	})
}

func dump(t testing.TB, s *store.Store) []byte {
	t.Helper()
	sn := s.Snapshot()
	defer sn.Close()
	var b writer
	if _, err := sn.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b
}

type writer []byte

func (w *writer) Write(b []byte) (int, error) { *w = append(*w, b...); return len(b), nil }

// stallLog is a log whose appends can be made to hang or fail.
type stallLog struct {
	raft.LogStore
	mu      sync.Mutex
	gate    chan struct{}
	err     error
	waiting atomic.Int64
}

func (s *stallLog) IsMonotonic() bool { return true }

func (s *stallLog) stall() (release func()) {
	g := make(chan struct{})
	s.mu.Lock()
	s.gate = g
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(g)
	})
}

func (s *stallLog) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
}

func (s *stallLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *stallLog) StoreLogs(ls []*raft.Log) error {
	s.mu.Lock()
	g, err := s.gate, s.err
	s.mu.Unlock()
	if g != nil {
		s.waiting.Add(1)
		<-g
		s.waiting.Add(-1)
	}
	if err != nil {
		return err
	}
	return s.LogStore.StoreLogs(ls)
}
