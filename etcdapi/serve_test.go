package etcdapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// serveFront serves g on a port, with TLS and a certificate for 127.0.0.1, or
// without. It returns the address and what a client needs.
func serveFront(t *testing.T, g *rig, secure bool) (addr string, conf *tls.Config) {
	t.Helper()
	front, err := g.server.NewFront(nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server *tls.Config
	if secure {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AddCert(cert)
		server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
		conf = &tls.Config{RootCAs: pool}
	}
	served := make(chan error, 1)
	go func() { served <- front.Serve(l, server) }()
	t.Cleanup(func() {
		front.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), conf
}

// One port serves etcd's clients, HTTP/1.1 and HTTP/2, and the API as JSON.
func TestFrontServesEverything(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, nil)
			ctx := testContext(t)
			addr, conf := serveFront(t, g, secure)
			scheme := "http://"
			if secure {
				scheme = "https://"
			}
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{scheme + addr}, TLS: conf, DialTimeout: patience, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Put(ctx, "k", "v"); err != nil {
				t.Fatal(err)
			}
			for _, forceHTTP2 := range []bool{false, true} {
				if forceHTTP2 && !secure {
					continue // HTTP/2 without TLS is gRPC
				}
				web := &http.Client{Transport: &http.Transport{TLSClientConfig: conf.Clone(), ForceAttemptHTTP2: forceHTTP2}}
				page := func(method, path, body string) string {
					t.Helper()
					r, err := http.NewRequestWithContext(ctx, method, scheme+addr+path, strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					resp, err := web.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					if want := 1; forceHTTP2 && resp.ProtoMajor != 2 || !forceHTTP2 && resp.ProtoMajor != want {
						t.Errorf("%s over HTTP/%d", path, resp.ProtoMajor)
					}
					b, err := io.ReadAll(resp.Body)
					if err != nil || resp.StatusCode != 200 {
						t.Errorf("%s: %d %s %v", path, resp.StatusCode, b, err)
					}
					return string(b)
				}
				if got := page("GET", "/health", ""); !strings.Contains(got, `"health":"true"`) {
					t.Errorf("/health: %s", got)
				}
				b64 := base64.StdEncoding.EncodeToString
				var answer struct {
					Kvs []struct{ Key, Value []byte }
				}
				got := page("POST", "/v3/kv/range", `{"key":"`+b64([]byte("k"))+`"}`)
				if err := json.Unmarshal([]byte(got), &answer); err != nil || len(answer.Kvs) != 1 || !bytes.Equal(answer.Kvs[0].Value, []byte("v")) {
					t.Errorf("range: %s, %v", got, err)
				}
				if got := page("GET", "/metrics", ""); !strings.Contains(got, `grpc_server_handled_total{grpc_code="OK",grpc_method="Put"`) {
					t.Errorf("/metrics tells of no put: %.2000s", got)
				}
			}
		})
	}
}

// A watch over a websocket of the JSON form tells events as they come, and ends with the server.
func TestWatchOverWebsocket(t *testing.T) {
	g := newRig(t, nil)
	ctx := testContext(t)
	addr, conf := serveFront(t, g, true)
	dialer := websocket.Dialer{TLSClientConfig: conf, HandshakeTimeout: patience}
	ws, _, err := dialer.DialContext(ctx, "wss://"+addr+"/v3/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if err := ws.WriteJSON(map[string]any{"create_request": map[string]any{"key": []byte("k")}}); err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Result struct {
			Created bool
			Events  []struct{ Kv struct{ Key, Value []byte } }
		}
	}
	if err := ws.ReadJSON(&answer); err != nil || !answer.Result.Created {
		t.Fatalf("%+v, %v", answer, err)
	}
	for _, value := range []string{"1", "2"} {
		if _, err := g.client.Put(ctx, "k", value); err != nil {
			t.Fatal(err)
		}
		answer.Result.Events = nil
		if err := ws.ReadJSON(&answer); err != nil || len(answer.Result.Events) != 1 || string(answer.Result.Events[0].Kv.Value) != value {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
}

// What is not TLS is turned away and costs the others nothing; Stop ends it all.
func TestFrontTurnsAway(t *testing.T) {
	g := newRig(t, nil)
	addr, conf := serveFront(t, g, true)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	if b, err := io.ReadAll(c); err != nil && len(b) > 0 && b[0] != 0x15 { // a TLS alert, or nothing
		t.Errorf("plain text got %q, %v", b, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := tls.Dialer{Config: conf}
	s, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
