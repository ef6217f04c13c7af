package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newDir(t *testing.T) (Dir, Host) {
	t.Helper()
	d := Dir(filepath.Join(t.TempDir(), "pki"))
	b, err := NewBundle(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(d); err != nil {
		t.Fatal(err)
	}
	h := Host{Name: "a", ID: "0123", Addresses: []net.IP{net.ParseIP("192.0.2.1")}, ServiceIP: net.ParseIP("10.96.0.1")}
	if made, err := EnsureHost(d, h, time.Now()); err != nil || len(made) != 6 {
		t.Fatalf("made %v, %v", made, err)
	}
	return d, h
}

// TestPrivateKeysAreNotReadableByOthers looks at every file that was written.
func TestPrivateKeysAreNotReadableByOthers(t *testing.T) {
	d, _ := newDir(t)
	keys := 0
	err := filepath.WalkDir(string(d), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if strings.Contains(string(b), "PRIVATE KEY") {
			keys++
			if st, _ := os.Stat(p); st.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", p, st.Mode())
			}
		}
		return nil
	})
	if err != nil || keys != 11 {
		t.Fatalf("%d keys, %v", keys, err)
	}
}

func TestHostCertificatesAreRenewedWhenTheyMust(t *testing.T) {
	d, h := newDir(t)
	now := time.Now()
	for _, c := range []struct {
		name string
		do   func()
		at   time.Time
		want int
	}{
		{"nothing changed", func() {}, now, 0},
		{"an address came", func() { h.Addresses = append(h.Addresses, net.ParseIP("192.0.2.9")) }, now, 3},
		{"a key was lost", func() { os.Remove(d.Peer().Key) }, now, 1},
		{"a certificate was damaged", func() { os.WriteFile(d.EtcdClient().Cert, []byte("x"), 0o644) }, now, 1},
		{"key of another generation", func() {
			b, _ := os.ReadFile(d.EtcdClient().Key)
			os.WriteFile(d.KubeletClient().Key, b, 0o600)
		}, now, 1},
		{"two thirds of life gone", func() {}, now.Add(LeafLifetime * 7 / 10), 6},
	} {
		c.do()
		if made, err := EnsureHost(d, h, c.at); err != nil || len(made) != c.want {
			t.Errorf("%s: made %v, want %d; %v", c.name, made, c.want, err)
		}
	}
}

func TestAnotherClustersAuthorityIsNotOverwritten(t *testing.T) {
	d, _ := newDir(t)
	before, _ := os.ReadFile(d.CACert())
	other, err := NewBundle(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Write(d); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Fatalf("got %v", err)
	}
	if after, _ := os.ReadFile(d.CACert()); string(after) != string(before) {
		t.Fatal("the authority was replaced")
	}
}

func TestBundleRoundTrip(t *testing.T) {
	d, _ := newDir(t)
	b, err := ReadBundle(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Write(Dir(filepath.Join(t.TempDir(), "x"))); err != nil {
		t.Fatal(err)
	}
}

func TestParseToken(t *testing.T) {
	hash := strings.Repeat("a", 64)
	tok, err := NewToken(RoleNode, hash)
	if err != nil {
		t.Fatal(err)
	}
	for in, host := range map[string]string{
		tok.Word() + "@h1":            "h1:6443",
		tok.Word() + "@h1:7443":       "h1:7443",
		" " + tok.Word() + "@[::1]\n": "[::1]:6443",
	} {
		got, h, err := ParseToken(in)
		if err != nil || h != host || got != tok {
			t.Errorf("%q: %v %q %v", in, got, h, err)
		}
	}
	for _, bad := range []string{"", tok.Word(), tok.Word() + "@", "x@h", strings.Replace(tok.Word(), "node", "king", 1) + "@h",
		tok.Word()[:len(tok.Word())-1] + "@h", strings.ToUpper(tok.Word()) + "@h"} {
		_, _, err := ParseToken(bad)
		if err == nil {
			t.Errorf("%q was taken", bad)
		} else if strings.Contains(err.Error(), tok.Secret) {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
	if strings.Contains(tok.String(), tok.Secret) {
		t.Error("String tells the secret")
	}
}

// TestPinnedTLS: a host that knows only the hash reaches its own cluster, and no other.
func TestPinnedTLS(t *testing.T) {
	d, _ := newDir(t)
	pair, err := tls.LoadX509KeyPair(d.APIServer().Cert, d.APIServer().Key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	srv.StartTLS()
	defer srv.Close()
	ca, err := d.Authority()
	if err != nil {
		t.Fatal(err)
	}
	dial := func(hash string, found func(*x509.Certificate)) error {
		c, err := (&tls.Dialer{Config: PinnedTLS(hash, found)}).DialContext(context.Background(), "tcp", srv.Listener.Addr().String())
		if err == nil {
			c.Close()
		}
		return err
	}
	var got *x509.Certificate
	if err := dial(HashCA(ca.Cert), func(c *x509.Certificate) { got = c }); err != nil || !got.Equal(ca.Cert) {
		t.Fatalf("%v %v", got, err)
	}
	if err := dial(strings.Repeat("0", 64), func(*x509.Certificate) { t.Error("found") }); !errors.Is(err, ErrWrongCluster) {
		t.Fatalf("got %v", err)
	}
}
