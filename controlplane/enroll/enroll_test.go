package enroll

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// cluster serves the join path with a cluster's own serving certificate, issued
// as if the cluster's clock were off by skew.
func cluster(t *testing.T, skew time.Duration, h http.HandlerFunc) (pki.Token, string) {
	t.Helper()
	now := time.Now().Add(skew)
	ca, err := pki.NewAuthority("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{pki.ServerName}}, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	tok, err := pki.NewToken(pki.RolePeer, pki.HashCA(ca.Cert))
	if err != nil {
		t.Fatal(err)
	}
	return tok, srv.Listener.Addr().String()
}

// TestJoinExplainsRefusals: whatever is wrong, the error says what and which
// command comes next, and never tells the token's secret.
func TestJoinExplainsRefusals(t *testing.T) {
	answer := func(code int, msg string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { peer.WriteRefusal(w, code, errors.New(msg)) }
	}
	for _, c := range []struct {
		name    string
		skew    time.Duration
		handler http.HandlerFunc
		damage  func(*pki.Token)
		want    []string
		final   bool
	}{
		{name: "wrong or expired token", handler: answer(401, "x"), want: []string{"mistyped, has expired", "controld token --role peer"}, final: true},
		{name: "a node's token", handler: answer(403, "x"), want: []string{"not for a peer", "controld token --role peer"}, final: true},
		{name: "name taken", handler: answer(409, "the name b is taken by 192.0.2.7"), want: []string{"the name b is taken by 192.0.2.7"}, final: true},
		{name: "no leader", handler: answer(503, "no leader"), want: []string{"no leader"}},
		{name: "another cluster", handler: answer(200, ""), damage: func(t *pki.Token) { t.CAHash = strings.Repeat("0", 64) }, want: []string{"another hash", "controld token"}, final: true},
		{name: "clock an hour behind the cluster", skew: time.Hour, handler: answer(200, ""), want: []string{"clock of this host says", "timedatectl"}, final: true},
		{name: "clock an hour off by the Date header", handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
			json.NewEncoder(w).Encode(peer.JoinResponse{})
		}, want: []string{"1h0m", "ahead of", "timedatectl"}, final: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, host := cluster(t, c.skew, c.handler)
			if c.damage != nil {
				c.damage(&tok)
			}
			_, err := newJoinClient(tok, host).ask(context.Background(), peer.JoinRequest{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			if strings.Contains(err.Error(), tok.Secret) {
				t.Errorf("tells the secret: %v", err)
			}
			if got := errors.As(err, new(refusedError)); got != c.final {
				t.Errorf("final is %v: %v", got, err)
			}
		})
	}
}

func TestJoinSendsTheTokenAndTakesTheBundle(t *testing.T) {
	b, err := pki.NewBundle(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var tok pki.Token
	tok, host := cluster(t, 0, func(w http.ResponseWriter, r *http.Request) {
		var q peer.JoinRequest
		if json.NewDecoder(r.Body).Decode(&q) != nil || q.Name != "b" || r.Header.Get("Authorization") != "Bearer "+tok.Bearer() {
			w.WriteHeader(401)
			return
		}
		json.NewEncoder(w).Encode(peer.JoinResponse{Bundle: b, Cluster: peer.DefaultCluster()})
	})
	r, err := newJoinClient(tok, host).ask(context.Background(), peer.JoinRequest{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Bundle.Write(pki.Dir(filepath.Join(t.TempDir(), "pki"))); err != nil {
		t.Fatal(err)
	}
	if r.Cluster != peer.DefaultCluster() {
		t.Fatal(r.Cluster)
	}
}

func TestPortInUseNamesTheProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	err = checkPort("127.0.0.1", port, "apiPort")
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) || !strings.Contains(err.Error(), "enroll.test (pid ") || !strings.Contains(err.Error(), "apiPort") {
		t.Fatal(err)
	}
}

func TestWaitSaysForWhatAfterFiveSeconds(t *testing.T) {
	var out strings.Builder
	start := time.Now()
	err := wait(context.Background(), &out, "the moon", func(context.Context) (bool, string, error) {
		return strings.Contains(out.String(), "the moon") || time.Since(start) > 30*time.Second, "it rises", nil
	})
	if err != nil || !strings.Contains(out.String(), "waiting for the moon (it rises), 5s") {
		t.Fatalf("%q %v", out.String(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = wait(ctx, &out, "the moon", func(context.Context) (bool, string, error) { return false, "", nil })
	if err == nil || !strings.Contains(err.Error(), "gave up waiting for the moon") {
		t.Fatal(err)
	}
	boom := fmt.Errorf("boom")
	if err := wait(context.Background(), &out, "x", func(context.Context) (bool, string, error) { return false, "", boom }); !errors.Is(err, boom) {
		t.Fatal(err)
	}
}

func TestLastWordsLeaveOutTheGoroutines(t *testing.T) {
	log := "level=INFO msg=a\nlevel=ERROR msg=b\nSIGABRT: abort\ngoroutine 1 [running]:\nmain.main()\n\tmain.go:1 +0x1\ncontrold.service: Failed with result 'watchdog'.\n"
	if got, want := lastWords(log, 3), "  level=ERROR msg=b\n  SIGABRT: abort\n  controld.service: Failed with result 'watchdog'."; got != want {
		t.Fatalf("%q", got)
	}
}
