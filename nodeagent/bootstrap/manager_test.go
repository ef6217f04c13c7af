package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/nodeagent/peers"
)

func nodeClient(t *testing.T, f *fakeAPI, m *Manager) kubernetes.Interface {
	t.Helper()
	set, err := peers.New(f.addr())
	if err != nil {
		t.Fatal(err)
	}
	c := peers.NewClient(peers.ClientConfig{Set: set, Roots: f.ca.Pool(), Certificate: m.Certificate})
	k, err := kubernetes.NewForConfig(c.Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func firstCertificate(t *testing.T, f *fakeAPI) string {
	t.Helper()
	set, err := peers.New(f.addr())
	if err != nil {
		t.Fatal(err)
	}
	cfg := peers.NewClient(peers.ClientConfig{Set: set, Roots: f.ca.Pool()}).Config("test")
	cfg.BearerToken = f.token.Bearer()
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := request(context.Background(), k, certificateRequest{signer: "kubernetes.io/kube-apiserver-client-kubelet", node: "n1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(t.TempDir(), "client.pem")
	if err := writePair(p, pair); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRenewalIsDueBetween70And80Percent(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	to := from.Add(100 * time.Hour)
	for jitter, want := range map[float64]time.Duration{0: 70 * time.Hour, 0.5: 75 * time.Hour, 1: 80 * time.Hour} {
		if got := renewAt(from, to, jitter).Sub(from).Round(time.Second); got != want {
			t.Errorf("jitter %v: %v", jitter, got)
		}
	}
}

func TestClientCertificateIsRenewedWithItself(t *testing.T) {
	f := newFakeAPI(t)
	path := firstCertificate(t, f)
	changed := make(chan struct{}, 8)
	m, err := NewManager(ManagerConfig{Path: path, Node: "n1", Changed: func() { changed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	first, _ := m.Certificate()
	m.now = func() time.Time { return first.Leaf.NotAfter.Add(-time.Minute) } // late in its life
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx, nodeClient(t, f, m)) })
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("not renewed")
	}
	cancel()
	wg.Wait()
	now, _ := m.Certificate()
	if now.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) == 0 {
		t.Error("the certificate in use is the old one")
	}
	onDisk, err := LoadPair(path)
	if err != nil || onDisk.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) == 0 {
		t.Errorf("the file holds the old one: %v", err)
	}
	if f.lastUser != UserPrefix+"n1" {
		t.Errorf("asked as %q", f.lastUser)
	}
}

func TestServingCertificateFollowsTheNodesAddresses(t *testing.T) {
	f := newFakeAPI(t)
	client, err := NewManager(ManagerConfig{Path: firstCertificate(t, f), Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ips := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	changed := make(chan struct{}, 8)
	m, err := NewManager(ManagerConfig{Path: filepath.Join(t.TempDir(), "serving.pem"), Node: "n1", Changed: func() { changed <- struct{}{} },
		Names: func() ([]string, []netip.Addr) {
			mu.Lock()
			defer mu.Unlock()
			return []string{"n1"}, slices.Clone(ips)
		}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Certificate(); err == nil {
		t.Fatal("there is a certificate before one was issued")
	}
	k := nodeClient(t, f, client)
	if err := m.renew(context.Background(), k); err != nil {
		t.Fatal(err)
	}
	c, err := m.Certificate()
	if err != nil || c.Leaf.VerifyHostname("192.0.2.1") != nil || c.Leaf.VerifyHostname("n1") != nil {
		t.Fatalf("certificate for %v %v, %v", c.Leaf.DNSNames, c.Leaf.IPAddresses, err)
	}
	if d := m.untilDue(0); d <= 0 {
		t.Errorf("a fresh certificate is due %v ago", -d)
	}
	mu.Lock()
	ips = append(ips, netip.MustParseAddr("192.0.2.2"))
	mu.Unlock()
	if d := m.untilDue(0); d != 0 {
		t.Errorf("a new address does not make it due: %v", d)
	}
	// A restart finds it again.
	again, err := NewManager(ManagerConfig{Path: m.path, Node: "n1", Names: m.names})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Certificate(); err != nil {
		t.Error(err)
	}
}

func TestAHostThatHasNotJoinedIsToldHow(t *testing.T) {
	_, err := NewManager(ManagerConfig{Path: filepath.Join(t.TempDir(), "none.pem"), Node: "n1"})
	if err == nil || !strings.Contains(err.Error(), "noded join") {
		t.Fatalf("got %v", err)
	}
}

func TestRequestTellsWhyItWasDenied(t *testing.T) {
	f := newFakeAPI(t)
	m, err := NewManager(ManagerConfig{Path: firstCertificate(t, f), Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	f.deny = "addresses differ"
	err = m.renew(context.Background(), nodeClient(t, f, m))
	if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "addresses differ") {
		t.Fatalf("got %v", err)
	}
	var c *tls.Certificate
	if c, err = m.Certificate(); err != nil || c == nil {
		t.Errorf("the old certificate is no longer in use: %v", err)
	}
}
