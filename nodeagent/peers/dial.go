package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout bounds one peer's TCP handshake; on one network it takes
	// under a millisecond, or never ends.
	dialTimeout = 2 * time.Second
	// handshakeTimeout bounds one peer's TLS handshake: a busy peer is slow, and
	// where there are others they are tried beside it long before.
	handshakeTimeout = 10 * time.Second
	// nextDialAfter is how long a silent peer delays the attempt at the next.
	nextDialAfter = 500 * time.Millisecond
	// userTimeout is how long written bytes, pings among them, may stay without
	// an acknowledgement before the kernel gives the connection up. Kernels
	// acknowledge however busy the process behind them is, so this tells a cut
	// cable from a slow peer.
	userTimeout = 3 * time.Second
)

// conn is a connection to a peer that the Set can close when it leaves the peer.
type conn struct {
	net.Conn
	set  *Set
	peer string
}

func (c *conn) Close() error {
	c.set.mu.Lock()
	delete(c.set.conns, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// DialContext connects to a peer. The address asked for is ignored: every
// request to the cluster goes to whichever peer answers. The current peer is
// tried first; when it refuses, or is silent for half a second, the next is
// tried beside it, and the first to answer becomes the current one.
func (s *Set) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return s.dial(ctx, func(_ context.Context, c net.Conn) (net.Conn, error) { return c, nil })
}

// dial is DialContext for connections that have answered only once shake, a
// handshake over them, has succeeded.
func (s *Set) dial(ctx context.Context, shake func(context.Context, net.Conn) (net.Conn, error)) (net.Conn, error) {
	list := s.Candidates()
	if len(list) == 0 {
		return nil, ErrNone
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout+handshakeTimeout+time.Duration(len(list))*nextDialAfter)
	defer cancel()

	type result struct {
		c    net.Conn
		peer string
		err  error
	}
	results := make(chan result, len(list)) // room for all: no dialler is left blocked
	started, finished := 0, 0
	start := func() {
		peer := list[started]
		started++
		go func() {
			c, err := s.attempt(ctx, peer, shake)
			results <- result{c, peer, err}
		}()
	}
	start()
	timer := time.NewTimer(nextDialAfter)
	defer timer.Stop()
	var errs []error
	for {
		select {
		case r := <-results:
			finished++
			if r.err == nil {
				if left := started - finished; left > 0 {
					go func() {
						for range left {
							if o := <-results; o.c != nil {
								o.c.Close()
							}
						}
					}()
				}
				s.mu.Lock()
				s.current = r.peer
				if s.bad == r.peer {
					s.bad = ""
				}
				s.mu.Unlock()
				return r.c, nil
			}
			errs = append(errs, r.err)
			if started < len(list) {
				start()
				timer.Reset(nextDialAfter)
			} else if finished == started {
				return nil, fmt.Errorf("no API peer answers (%d tried): %w", len(list), errors.Join(errs...))
			}
		case <-timer.C:
			if started < len(list) {
				start()
				timer.Reset(nextDialAfter)
			}
		}
	}
}

// attempt connects to one peer.
func (s *Set) attempt(ctx context.Context, peer string, shake func(context.Context, net.Conn) (net.Conn, error)) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}
	raw, err := d.DialContext(ctx, "tcp", peer)
	if err != nil {
		return nil, err
	}
	c := s.track(raw, peer)
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	up, err := shake(hctx, c)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("peer %s: %w", peer, err)
	}
	return up, nil
}

// track makes a connection one that the Set can close.
func (s *Set) track(c net.Conn, peer string) net.Conn {
	if tc, ok := c.(*net.TCPConn); ok {
		if raw, err := tc.SyscallConn(); err == nil {
			// Without it a dead peer holds a connection for as long as the
			// kernel retransmits; failing to set it only costs that time.
			_ = raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
			})
		}
	}
	pc := &conn{Conn: c, set: s, peer: peer}
	s.mu.Lock()
	s.conns[pc] = struct{}{}
	s.mu.Unlock()
	return pc
}

// Leave gives up peer if it is still the current one: it goes to the end of the
// order and every connection to it is closed. Requests under way fail and are
// tried again by their callers, elsewhere.
func (s *Set) Leave(peer string) {
	s.mu.Lock()
	if s.current != peer {
		s.mu.Unlock()
		return
	}
	s.current, s.bad = "", peer
	var closing []*conn
	for c := range s.conns {
		if c.peer == peer {
			closing = append(closing, c)
		}
	}
	s.mu.Unlock()
	for _, c := range closing {
		c.Close()
	}
}

// CloseConnections closes every connection, so that the next request makes a new
// handshake: after the client certificate was replaced.
func (s *Set) CloseConnections() {
	s.mu.Lock()
	closing := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		closing = append(closing, c)
	}
	s.mu.Unlock()
	for _, c := range closing {
		c.Close()
	}
}
