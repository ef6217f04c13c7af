package peers

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/pki"
)

// cluster is three API peers with certificates of one CA.
type cluster struct {
	ca    *pki.Authority
	peers []*peer
}

type peer struct {
	srv   *httptest.Server
	addr  string
	asked atomic.Int64
	sick  atomic.Bool   // answers 500 to everything, as one without quorum
	stall chan struct{} // requests to /stall end with it
}

func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	ca, err := pki.NewAuthority("kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{ca: ca}
	for range n {
		cert, key, err := ca.Issue(pki.Leaf{CommonName: "kube-apiserver", DNSNames: []string{ServerName}, Server: true}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{stall: make(chan struct{})}
		p.srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p.sick.Load() {
				http.Error(w, "no leader", http.StatusInternalServerError)
				return
			}
			switch r.URL.Path {
			case "/readyz":
			case "/stall":
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
				case <-p.stall:
				}
			default:
				p.asked.Add(1)
				fmt.Fprint(w, p.addr)
			}
		}))
		p.srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
		p.srv.EnableHTTP2 = true
		p.srv.StartTLS()
		p.addr = p.srv.Listener.Addr().String()
		t.Cleanup(func() { p.srv.CloseClientConnections(); p.srv.Close() })
		c.peers = append(c.peers, p)
	}
	return c
}

func (c *cluster) addrs() []string {
	var out []string
	for _, p := range c.peers {
		out = append(out, p.addr)
	}
	return out
}

func (c *cluster) peer(addr string) *peer {
	for _, p := range c.peers {
		if p.addr == addr {
			return p
		}
	}
	return nil
}

func (c *cluster) client(s *Set) *Client { return NewClient(ClientConfig{Set: s, Roots: c.ca.Pool()}) }

// get asks for any page and returns which peer answered.
func get(t *testing.T, c *Client) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+ServerName+"/who", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s", resp.Status)
	}
	return string(b), err
}

// getAnyhow repeats get until it succeeds, as a client of Kubernetes does.
func getAnyhow(t *testing.T, c *Client) string {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		who, err := get(t, c)
		if err == nil {
			return who
		}
		if time.Now().After(deadline) {
			t.Fatalf("no peer serves: %v", err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestRequestsStayWithOnePeer(t *testing.T) {
	c := newCluster(t, 3)
	s, err := New(c.addrs()...)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.client(s)
	first := getAnyhow(t, cl)
	for range 20 {
		if who := getAnyhow(t, cl); who != first {
			t.Fatalf("moved from %s to %s for no reason", first, who)
		}
	}
	if s.Current() != first {
		t.Errorf("current is %s, %s answered", s.Current(), first)
	}
}

func TestAPeerThatDiesIsReplaced(t *testing.T) {
	c := newCluster(t, 3)
	s, err := New(c.addrs()...)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.client(s)
	seen := map[string]bool{}
	for range c.peers {
		who := getAnyhow(t, cl)
		if seen[who] {
			t.Fatalf("%s answered though it is dead", who)
		}
		seen[who] = true
		p := c.peer(who)
		p.srv.CloseClientConnections()
		p.srv.Close()
	}
	// A request may still meet the last one's connection as it ends.
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := get(t, cl)
		if err == nil {
			t.Fatal("a dead peer answered")
		}
		if strings.Contains(err.Error(), "no API peer answers (3 tried)") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with all dead: %v", err)
		}
	}
}

// A pulled cable: packets vanish, and the kernel alone would wait for minutes.
func TestASilentPeerIsLeftAndItsWatchesEnd(t *testing.T) {
	c := newCluster(t, 2)
	hole := newBlackHole(t, c.peers[0].addr)
	s, err := New(hole.addr, c.peers[1].addr)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.client(s)
	if who := getAnyhow(t, cl); who != c.peers[0].addr {
		t.Fatalf("%s answered first", who)
	}
	req, _ := http.NewRequest(http.MethodGet, "https://"+ServerName+"/stall", nil)
	watch, err := cl.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	hole.swallow.Store(true)
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, watch.Body); ended <- err }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the watch ended as if it were complete")
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the watch hangs on a silent peer")
	}
	if who := getAnyhow(t, cl); who != c.peers[1].addr {
		t.Errorf("%s answered", who)
	}
}

func TestAPeerWithoutQuorumIsLeft(t *testing.T) {
	c := newCluster(t, 3)
	s, err := New(c.addrs()...)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.client(s)
	sick := getAnyhow(t, cl)
	c.peer(sick).sick.Store(true)
	if who := getAnyhow(t, cl); who == sick {
		t.Errorf("%s answered", who)
	}
}

func TestWhereNoPeerCanServeTheSetStays(t *testing.T) {
	c := newCluster(t, 2)
	s, err := New(c.addrs()...)
	if err != nil {
		t.Fatal(err)
	}
	cl := c.client(s)
	first := getAnyhow(t, cl)
	for _, p := range c.peers {
		p.sick.Store(true)
	}
	cl.Check(context.Background())
	if s.Current() != first {
		t.Errorf("moved to %q", s.Current())
	}
	c.peer(first).sick.Store(false)
	if who := getAnyhow(t, cl); who != first {
		t.Errorf("%s answered", who)
	}
}

func TestAPeerOfAnotherClusterIsRefused(t *testing.T) {
	c, other := newCluster(t, 1), newCluster(t, 1)
	s, err := New(other.peers[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := get(t, c.client(s)); err == nil {
		t.Fatalf("%s of another cluster was believed", who)
	}
	if other.peers[0].asked.Load() != 0 {
		t.Error("the request reached it")
	}
}

func TestKubernetesClientWorksOverTheSet(t *testing.T) {
	c := newCluster(t, 2)
	s, err := New(c.addrs()...)
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(c.client(s).Config("test"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := k.CoreV1().RESTClient().Get().AbsPath("/who").DoRaw(context.Background())
	if err != nil || !slices.Contains(c.addrs(), string(b)) {
		t.Fatalf("%s, %v", b, err)
	}
}

func TestLearntPeersAreKeptAndSeedsNeverForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peers.json")
	s, err := Open(path, "cp.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update([]string{"192.0.2.1:6443", "192.0.2.2"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Update([]string{"192.0.2.2", "192.0.2.3"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(nil); err != nil { // a cluster that says nothing is not believed
		t.Fatal(err)
	}
	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	got := again.Candidates()
	slices.Sort(got[:2])
	if want := []string{"192.0.2.2:6443", "192.0.2.3:6443", "cp.example:6443"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for in, want := range map[string]string{
		"host": "host:6443", "host:1": "host:1", "192.0.2.1": "192.0.2.1:6443", "2001:db8::1": "[2001:db8::1]:6443", "[2001:db8::1]:2": "[2001:db8::1]:2",
	} {
		if got, err := Normalize(in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "host:0", "host:x", ":6443", "a b", "http://host", "host:70000"} {
		if got, err := Normalize(bad); err == nil {
			t.Errorf("%q was taken as %s", bad, got)
		}
	}
}

func TestPeersAreReadFromTheKubernetesService(t *testing.T) {
	port, no, yes := int32(7443), false, true
	name := "https"
	slice := func(ns, svc string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Labels: map[string]string{discoveryv1.LabelServiceName: svc}},
			Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: new(v1.Protocol)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
				{Addresses: []string{"192.0.2.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}}, {Addresses: []string{"192.0.2.3"}}}}
	}
	if got := FromSlice(slice("default", "kubernetes")); !slices.Equal(got, []string{"192.0.2.1:7443", "192.0.2.3:7443"}) {
		t.Errorf("got %v", got)
	}
	if got := append(FromSlice(slice("default", "web")), FromSlice(slice("other", "kubernetes"))...); got != nil {
		t.Errorf("another Service's endpoints were taken: %v", got)
	}
}

// blackHole forwards to a peer until it swallows everything, in both directions,
// without closing anything.
type blackHole struct {
	addr    string
	swallow atomic.Bool
}

func newBlackHole(t *testing.T, to string) *blackHole {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &blackHole{addr: l.Addr().String()}
	t.Cleanup(func() { l.Close() })
	pump := func(dst, src net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if h.swallow.Load() {
				if err != nil {
					return
				}
				continue
			}
			if n > 0 {
				if _, werr := dst.Write(buf[:n]); werr != nil {
					return
				}
			}
			if err != nil {
				dst.Close()
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			t.Cleanup(func() { c.Close(); u.Close() })
			go pump(u, c)
			go pump(c, u)
		}
	}()
	return h
}
