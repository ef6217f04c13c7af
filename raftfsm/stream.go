package raftfsm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What a connection to the peer port is for, by its TLS application protocol.
const (
	protoRaft = "tripod-raft/1"
	protoRPC  = "tripod-rpc/1"
)

const (
	handshakeTimeout = 5 * time.Second
	helloMagic       = "TRPD\x01"
	helloSize        = len(helloMagic) + 3*8
)

// errRefused is wrapped by the error of a dial that the other side turned away.
var errRefused = errors.New("refused by the peer")

// ErrRemoved means that this peer was removed from the cluster. Its ID never comes back:
// empty its directory and join again.
var ErrRemoved = errors.New("this peer was removed from the cluster: empty its raft directory and join it again")

const (
	helloOK byte = iota
	helloWrongPeer
	helloWrongCluster
	helloRemoved
	helloUnknown
)

// streams is the one listener of a peer and the dialler to the others. After the TLS
// handshake both sides exchange a hello: the dialler says which cluster and peer it
// is and whom it means to reach, the listener accepts or says why not.
type streams struct {
	self      PeerID
	tls       func() (server, client *tls.Config, err error)
	faults    faults
	log       *slog.Logger
	ln        net.Listener
	advertise string
	// cluster is the cluster's ID as far as known, 0 before.
	cluster func() uint64
	// left are clusters that this peer must not be taken into again.
	left []uint64
	// admit says whether a peer may connect.
	admit func(PeerID) byte
	// removed is told when another peer says that this one was removed.
	removed func()
	// replaced is told when another peer says that its cluster has replaced this one's.
	replaced func(by uint64, from PeerID) error

	raft chan net.Conn
	rpc  func(net.Conn, PeerID)
	// roster answers who is no member yet.
	roster  func(net.Conn)
	metrics *metrics

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
}

// prepare makes the streams ready to dial; begin serves incoming connections as well.
func (s *streams) prepare() {
	s.raft = make(chan net.Conn)
	s.conns = map[net.Conn]struct{}{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
}

func (s *streams) begin() { s.wg.Go(s.accept) }

func (s *streams) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return
			}
			s.log.Error("cannot accept a peer connection", "error", err)
			select { // out of descriptors, most likely: they come back
			case <-s.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s.wg.Go(func() { s.serve(c) })
	}
}

func (s *streams) track(c net.Conn) (untrack func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, false
	}
	s.conns[c] = struct{}{}
	return func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}, true
}

func (s *streams) serve(raw net.Conn) {
	untrack, ok := s.track(raw)
	if !ok {
		raw.Close()
		return
	}
	fail := func(err error) {
		untrack()
		raw.Close()
		if s.ctx.Err() == nil && !errors.Is(err, io.EOF) {
			s.log.Warn("a peer connection was refused", "remote", raw.RemoteAddr().String(), "error", err)
		}
	}
	server, _, err := s.tls()
	if err != nil {
		fail(fmt.Errorf("load the peer certificate: %w", err))
		return
	}
	server = server.Clone()
	server.ClientAuth = tls.RequireAndVerifyClientCert
	server.MinVersion = tls.VersionTLS13
	server.NextProtos = []string{protoRaft, protoRPC, protoRoster, protoReplaced}
	server.SessionTicketsDisabled = true // a resumed session would outlive its certificate
	c := tls.Server(raw, server)
	c.SetDeadline(time.Now().Add(handshakeTimeout))
	if err := c.HandshakeContext(s.ctx); err != nil {
		fail(err)
		return
	}
	switch c.ConnectionState().NegotiatedProtocol {
	case protoRoster:
		s.roster(s.wrap(c, 0, untrack))
		return
	case protoReplaced:
		fail(cmp.Or(s.answerReplaced(c), io.EOF))
		return
	}
	from, err := s.answerHello(c)
	if err != nil {
		fail(err)
		return
	}
	c.SetDeadline(time.Time{})
	conn := s.wrap(c, from, untrack)
	switch c.ConnectionState().NegotiatedProtocol {
	case protoRaft:
		select {
		case s.raft <- conn:
		case <-s.ctx.Done():
			conn.Close()
		}
	case protoRPC:
		s.rpc(conn, from)
	default:
		conn.Close()
	}
}

// readHello reads who the other side is, which its certificate must confirm, and whom
// it means to reach.
func readHello(c *tls.Conn) (cluster uint64, from, to PeerID, err error) {
	var b [helloSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, 0, 0, fmt.Errorf("read the hello: %w", err)
	}
	if !bytes.Equal(b[:len(helloMagic)], []byte(helloMagic)) {
		return 0, 0, 0, errors.New("the other side does not speak this version of the peer protocol")
	}
	n := b[len(helloMagic):]
	cluster, from, to = binary.BigEndian.Uint64(n), PeerID(binary.BigEndian.Uint64(n[8:])), PeerID(binary.BigEndian.Uint64(n[16:]))
	if names := c.ConnectionState().PeerCertificates[0].DNSNames; !slices.Contains(names, from.String()) {
		return 0, 0, 0, fmt.Errorf("the other side says that it is peer %v, but its certificate is for %q", from, names)
	}
	return cluster, from, to, nil
}

// hello is what readHello reads.
func (s *streams) hello(to PeerID) []byte {
	b := append(make([]byte, 0, helloSize), helloMagic...)
	b = binary.BigEndian.AppendUint64(b, s.cluster())
	b = binary.BigEndian.AppendUint64(b, uint64(s.self))
	return binary.BigEndian.AppendUint64(b, uint64(to))
}

func (s *streams) answerHello(c *tls.Conn) (PeerID, error) {
	cluster, from, to, err := readHello(c)
	if err != nil {
		return 0, err
	}
	code := helloOK
	own := s.cluster()
	switch {
	case to != s.self:
		code = helloWrongPeer
	case cluster != 0 && own != 0 && cluster != own, slices.Contains(s.left, cluster):
		code = helloWrongCluster
	default:
		code = s.admit(from)
	}
	if _, err := c.Write([]byte{code}); err != nil {
		return 0, err
	}
	if code != helloOK {
		return 0, fmt.Errorf("peer %v: %w", from, helloError(code))
	}
	return from, nil
}

func helloError(code byte) error {
	switch code {
	case helloWrongPeer:
		return fmt.Errorf("%w: another peer answers at this address; correct the address of the member", errRefused)
	case helloWrongCluster:
		return fmt.Errorf("%w: it belongs to another cluster", errRefused)
	case helloRemoved:
		return fmt.Errorf("%w: %w", errRefused, ErrRemoved)
	case helloUnknown:
		return fmt.Errorf("%w: it does not know this peer as a member", errRefused)
	}
	return fmt.Errorf("%w (code %d)", errRefused, code)
}

// dial connects to peer at addr for one of the protocols.
func (s *streams) dial(ctx context.Context, peer PeerID, addr, proto string) (net.Conn, error) {
	c, untrack, err := s.connect(ctx, peer, addr, proto)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Conn, error) {
		untrack()
		c.Close()
		return nil, fmt.Errorf("connect to peer %v at %s: %w", peer, addr, err)
	}
	if _, err := c.Write(s.hello(peer)); err != nil {
		return fail(err)
	}
	var code [1]byte
	if _, err := io.ReadFull(c, code[:]); err != nil {
		return fail(err)
	}
	if code[0] != helloOK {
		if code[0] == helloRemoved {
			s.removed()
		}
		return fail(helloError(code[0]))
	}
	c.SetDeadline(time.Time{})
	return s.wrap(c, peer, untrack), nil
}

// connect makes a TLS connection, with a deadline by which the hellos are to be done.
func (s *streams) connect(ctx context.Context, peer PeerID, addr, proto string) (c *tls.Conn, untrack func(), err error) {
	if s.faults.dial != nil {
		if err := s.faults.dial(peer); err != nil {
			return nil, nil, err
		}
	}
	_, client, err := s.tls()
	if err != nil {
		return nil, nil, fmt.Errorf("load the peer certificate: %w", err)
	}
	client = client.Clone()
	client.ServerName = peer.String()
	client.MinVersion = tls.VersionTLS13
	client.NextProtos = []string{proto}
	client.InsecureSkipVerify = false
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	// Without SO_KEEPALIVE probes a power cut of the other side would go unseen by an idle connection.
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3}}
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to peer %v: %w", peer, err)
	}
	untrack, ok := s.track(raw)
	if !ok {
		raw.Close()
		return nil, nil, net.ErrClosed
	}
	c = tls.Client(raw, client)
	err = c.HandshakeContext(ctx)
	if got := c.ConnectionState().NegotiatedProtocol; err == nil && got != proto {
		err = fmt.Errorf("it speaks %q, not %q", got, proto)
	}
	if err != nil {
		untrack()
		raw.Close()
		return nil, nil, fmt.Errorf("connect to peer %v at %s: %w", peer, addr, err)
	}
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	return c, untrack, nil
}

func (s *streams) wrap(c net.Conn, peer PeerID, untrack func()) net.Conn {
	if s.faults.conn != nil {
		c = s.faults.conn(c, peer)
	}
	t := &trackedConn{Conn: c, untrack: sync.OnceFunc(untrack)}
	if s.metrics != nil {
		t.sent, t.received = s.metrics.sent.WithLabelValues(peer.String()), s.metrics.received.WithLabelValues(peer.String())
	}
	return t
}

// trackedConn leaves the set of open connections when it is closed. Its bytes are counted, where there are counters.
type trackedConn struct {
	net.Conn
	untrack        func()
	sent, received prometheus.Counter
}

func (c *trackedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.received != nil {
		c.received.Add(float64(n))
	}
	return n, err
}

func (c *trackedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.sent != nil {
		c.sent.Add(float64(n))
	}
	return n, err
}

func (c *trackedConn) Close() error {
	c.untrack()
	return c.Conn.Close()
}

// close ends the listener and every connection, and waits for their goroutines.
func (s *streams) close() {
	s.cancel()
	s.ln.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// raftLayer is the raft.StreamLayer over streams.
type raftLayer struct {
	*streams
	// peerAt finds the peer that the raft configuration has at an address.
	peerAt func(addr string) (PeerID, bool)
}

func (l *raftLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.raft:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close is called by raft's transport; the listener is closed by its owner.
func (l *raftLayer) Close() error { return nil }

func (l *raftLayer) Addr() net.Addr { return peerAddr(l.advertise) }

type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }
