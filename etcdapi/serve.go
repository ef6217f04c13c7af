package etcdapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// greetTimeout is how long a new connection may take for TLS and its first bytes.
const greetTimeout = 10 * time.Second

// tlsHandshake is the first byte of a client that begins TLS.
const tlsHandshake = 0x16

// http2Preface is how a client begins that speaks HTTP/2 without TLS.
const http2Preface = "PRI "

// Front serves gRPC and HTTP on the same listeners, as etcd does on its client
// port.
//
// A TLS client that offers nothing but h2 speaks gRPC and goes to the gRPC
// server with no HTTP server between. One that offers HTTP/1.1 as well may want
// either, and goes to the HTTP server, which passes gRPC requests on. Without
// TLS the first bytes tell.
type Front struct {
	grpc  *grpc.Server
	http  *http.Server
	rpcs  *handover
	pages *handover
	// gateway calls the gRPC server from within.
	gateway         *grpc.ClientConn
	pagesAndGateway http.Handler
	metrics         *metrics
	log             *slog.Logger

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	stopped   bool
	wg        sync.WaitGroup
}

// NewFront returns a Front with all services, the JSON form of them under /v3/,
// and with pages over HTTP for the rest, which are Handler's when nil. The options are for the gRPC server; credentials are not
// among them, as Serve takes those.
func (s *Server) NewFront(pages http.Handler, more ...grpc.ServerOption) (*Front, error) {
	f := &Front{rpcs: newHandover(), pages: newHandover(), metrics: s.metrics, log: s.log, listeners: map[net.Listener]struct{}{}}
	f.grpc = s.NewGRPCServer(append([]grpc.ServerOption{
		grpc.Creds(greeted{}), grpc.ChainUnaryInterceptor(s.unaryLearner), grpc.ChainStreamInterceptor(s.streamLearner),
	}, more...)...)
	if pages == nil {
		pages = s.Handler()
	}
	gateway, conn, err := newGateway(func() net.Conn {
		ours, theirs := net.Pipe()
		go f.rpcs.give(theirs)
		return ours
	}, s.log)
	if err != nil {
		return nil, err
	}
	f.gateway = conn
	mux := http.NewServeMux()
	mux.Handle(gatewayPrefix, gateway)
	mux.Handle("/", pages)
	f.pagesAndGateway = mux
	f.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
				f.grpc.ServeHTTP(w, r)
				return
			}
			mux.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: greetTimeout,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	f.wg.Go(func() { f.grpc.Serve(f.rpcs) })
	f.wg.Go(func() { f.http.Serve(f.pages) })
	return f, nil
}

// Handler is what is served over HTTP, the JSON form of the API included.
func (f *Front) Handler() http.Handler { return f.pagesAndGateway }

// Serve accepts connections from l until Stop or until l is closed, and closes
// l. With conf they are TLS; its NextProtos are set here. It may be called for
// several listeners at the same time. After Stop it returns nil.
func (f *Front) Serve(l net.Listener, conf *tls.Config) error {
	if conf == nil {
		return f.serve(l, nil)
	}
	return f.serve(l, newFrontTLS(conf))
}

// ServeEither is Serve for clients with TLS and without on the same listener.
func (f *Front) ServeEither(l net.Listener, conf *tls.Config) error {
	secure := newFrontTLS(conf)
	secure.optional = true
	return f.serve(l, secure)
}

func (f *Front) serve(l net.Listener, secure *frontTLS) error {
	if !f.track(l) {
		l.Close()
		return nil
	}
	defer l.Close()
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			f.wg.Go(func() { f.greet(c, secure) })
			continue
		}
		f.mu.Lock()
		stopped := f.stopped
		f.mu.Unlock()
		if stopped || errors.Is(err, net.ErrClosed) {
			return nil
		}
		var ne net.Error
		if !errors.As(err, &ne) {
			return fmt.Errorf("accept clients on %s: %w", l.Addr(), err)
		}
		// Out of descriptors, most likely: they come back.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		f.log.Error("cannot accept a client", "address", l.Addr().String(), "error", err)
		time.Sleep(pause)
	}
}

func (f *Front) track(l net.Listener) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	f.listeners[l] = struct{}{}
	return true
}

// Stop closes all listeners and connections and waits for the handlers. Close
// the Server first, so that its streams end by themselves.
func (f *Front) Stop() {
	f.mu.Lock()
	f.stopped = true
	for l := range f.listeners {
		l.Close()
	}
	f.mu.Unlock()
	f.gateway.Close()
	f.rpcs.Close()
	f.pages.Close()
	f.http.Close()
	f.grpc.Stop()
	f.wg.Wait()
}

// greet finds out what a client speaks and hands its connection over.
func (f *Front) greet(c net.Conn, secure *frontTLS) {
	c = counted{Conn: c, m: f.metrics}
	c.SetDeadline(time.Now().Add(greetTimeout))
	to := f.pages
	if secure != nil && secure.optional {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			c.Close()
			return
		}
		c = &begunConn{Conn: c, begun: first}
		if first[0] != tlsHandshake {
			secure = nil
		}
	}
	if secure != nil {
		t, rpc, err := secure.shake(c)
		if err != nil {
			c.Close()
			if !errors.Is(err, io.EOF) {
				f.log.Warn("rejected connection on client endpoint", "remote-addr", c.RemoteAddr().String(), "error", err)
			}
			return
		}
		if rpc {
			to = f.rpcs
		}
		c = t
	} else {
		first := make([]byte, len(http2Preface))
		n, err := io.ReadFull(c, first)
		if n == 0 && err != nil {
			c.Close()
			return
		}
		if string(first[:n]) == http2Preface {
			to = f.rpcs
		}
		c = &begunConn{Conn: c, begun: first[:n]}
	}
	c.SetDeadline(time.Time{})
	to.give(c)
}

const (
	protoHTTP2 = "h2"
	protoHTTP1 = "http/1.1"
)

// frontTLS is a TLS configuration in two forms, so that each keeps its session tickets.
type frontTLS struct {
	given     *tls.Config
	optional  bool // a client may do without TLS
	rpc, page *tls.Config
}

func newFrontTLS(given *tls.Config) *frontTLS {
	return &frontTLS{given: given, rpc: withProtos(given, protoHTTP2), page: withProtos(given, protoHTTP2, protoHTTP1)}
}

// shake does the handshake. rpc tells that the client offered HTTP/2 alone.
func (f *frontTLS) shake(c net.Conn) (t *tls.Conn, rpc bool, err error) {
	t = tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		rpc = slices.Contains(h.SupportedProtos, protoHTTP2) && !slices.Contains(h.SupportedProtos, protoHTTP1)
		chosen := f.page
		if rpc {
			chosen = f.rpc
		}
		if f.given.GetConfigForClient == nil {
			return chosen, nil
		}
		fresh, err := f.given.GetConfigForClient(h)
		if fresh == nil || err != nil {
			return chosen, err
		}
		return withProtos(fresh, chosen.NextProtos...), nil
	}})
	ctx, cancel := context.WithTimeout(context.Background(), greetTimeout)
	defer cancel()
	return t, rpc, t.HandshakeContext(ctx)
}

func withProtos(conf *tls.Config, protos ...string) *tls.Config {
	conf = conf.Clone()
	conf.NextProtos = protos
	return conf
}

// begunConn is a connection of which the first bytes were read already.
type begunConn struct {
	net.Conn
	begun []byte
}

func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.begun) > 0 {
		n := copy(p, c.begun)
		c.begun = c.begun[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// handover is a listener whose connections come from a Front.
type handover struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handover) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.done:
		c.Close()
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handover) Addr() net.Addr { return handoverAddr{} }

type handoverAddr struct{}

func (handoverAddr) Network() string { return "handover" }
func (handoverAddr) String() string  { return "handover" }

// greeted are the credentials of connections whose TLS handshake is done.
type greeted struct{}

func (greeted) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := c.(*tls.Conn)
	if !ok {
		return insecure.NewCredentials().ServerHandshake(c)
	}
	return c, credentials.TLSInfo{State: t.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (greeted) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers")
}

func (greeted) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (greeted) Clone() credentials.TransportCredentials { return greeted{} }
func (greeted) OverrideServerName(string) error         { return nil }
