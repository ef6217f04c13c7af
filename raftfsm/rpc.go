package raftfsm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The peer RPC: frames of a 4-byte length, a kind, an 8-byte call number and a body;
// many calls are under way on one connection and are answered in any order. An answer
// carries the kind replyOK or replyErr; the body of the latter is a code and a text.

type rpcKind byte

const (
	rpcPropose rpcKind = iota + 1
	rpcReadIndex
	rpcConfirm
	rpcStatus
	rpcLease
	rpcMember
	rpcSeek          // ask the others who leads: they know something about you
	replyOK  rpcKind = 0x80
	replyErr rpcKind = 0x81
)

const (
	rpcHeader   = 4 + 1 + 8
	maxFrame    = 8 << 20
	rpcWriteFor = 5 * time.Second
	maxServing  = 1024 // calls being served for one connection
)

type rpcCode byte

const (
	codeOther rpcCode = iota
	codeNotLeader
	codeUnknown  // the outcome is unknown
	codeNotReady // not now; nothing was done
	codeNoSpace
	codeGRPC // text is a gRPC status: code, message
)

// rpcError is a refusal by the other side.
type rpcError struct {
	code rpcCode
	text string
}

func (e *rpcError) Error() string { return e.text }

// errNotSent marks a call that never left this peer.
var errNotSent = errors.New("not sent")

var errConnLost = errors.New("connection to the peer was lost")

// rpcConn is the calling end of one connection.
type rpcConn struct {
	c net.Conn

	wmu sync.Mutex
	w   *bufio.Writer

	mu    sync.Mutex
	next  uint64
	calls map[uint64]chan rpcReply
	err   error
}

type rpcReply struct {
	kind rpcKind
	body []byte
	err  error
}

func newRPCConn(c net.Conn) *rpcConn {
	r := &rpcConn{c: c, w: bufio.NewWriterSize(c, 64<<10), calls: map[uint64]chan rpcReply{}}
	go r.read()
	return r
}

func (r *rpcConn) read() {
	br := bufio.NewReaderSize(r.c, 64<<10)
	for {
		kind, id, body, err := readFrame(br)
		if err != nil {
			r.fail(err)
			return
		}
		r.mu.Lock()
		ch := r.calls[id]
		delete(r.calls, id)
		r.mu.Unlock()
		if ch != nil {
			ch <- rpcReply{kind: kind, body: body}
		}
	}
}

func (r *rpcConn) fail(err error) {
	r.mu.Lock()
	if r.err == nil {
		r.err = fmt.Errorf("%w: %w", errConnLost, err)
	}
	calls := r.calls
	r.calls = map[uint64]chan rpcReply{}
	lost := r.err
	r.mu.Unlock()
	r.c.Close()
	for _, ch := range calls {
		ch <- rpcReply{err: lost}
	}
}

func (r *rpcConn) broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err != nil
}

func (r *rpcConn) call(ctx context.Context, kind rpcKind, body []byte) ([]byte, error) {
	ch := make(chan rpcReply, 1)
	r.mu.Lock()
	if r.err != nil {
		err := r.err
		r.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	r.next++
	id := r.next
	r.calls[id] = ch
	r.mu.Unlock()
	if err := writeFrame(&r.wmu, r.c, r.w, kind, id, body); err != nil {
		r.fail(err)
	}
	select {
	case rep := <-ch:
		switch {
		case rep.err != nil:
			return nil, rep.err
		case rep.kind == replyOK:
			return rep.body, nil
		case len(rep.body) > 0:
			return nil, decodeRPCError(rpcCode(rep.body[0]), string(rep.body[1:]))
		}
		return nil, errors.New("the peer sent an empty error")
	case <-ctx.Done():
		r.mu.Lock()
		delete(r.calls, id)
		r.mu.Unlock()
		return nil, ctx.Err()
	}
}

func readFrame(br *bufio.Reader) (rpcKind, uint64, []byte, error) {
	var h [rpcHeader]byte
	if _, err := io.ReadFull(br, h[:]); err != nil {
		return 0, 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[:])
	if n > maxFrame {
		return 0, 0, nil, fmt.Errorf("frame of %d bytes is above the limit of %d", n, maxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(br, body); err != nil {
		return 0, 0, nil, err
	}
	return rpcKind(h[4]), binary.BigEndian.Uint64(h[5:]), body, nil
}

func writeFrame(mu *sync.Mutex, c net.Conn, w *bufio.Writer, kind rpcKind, id uint64, body []byte) error {
	var h [rpcHeader]byte
	binary.BigEndian.PutUint32(h[:], uint32(len(body)))
	h[4] = byte(kind)
	binary.BigEndian.PutUint64(h[5:], id)
	mu.Lock()
	defer mu.Unlock()
	c.SetWriteDeadline(time.Now().Add(rpcWriteFor))
	if _, err := w.Write(h[:]); err != nil {
		return err
	}
	if _, err := w.Write(body); err != nil {
		return err
	}
	return w.Flush()
}

// respond answers one call; it may be called from any goroutine, once.
type respond func(body []byte, err error)

// serveRPC reads calls from c until it fails. handle must return quickly for kinds that
// it answers later by itself.
func serveRPC(ctx context.Context, c net.Conn, handle func(ctx context.Context, kind rpcKind, body []byte, done respond)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.Close()
	var wmu sync.Mutex
	w := bufio.NewWriterSize(c, 64<<10)
	br := bufio.NewReaderSize(c, 64<<10)
	slots := make(chan struct{}, maxServing)
	for {
		kind, id, body, err := readFrame(br)
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		handle(ctx, kind, body, func(body []byte, err error) {
			<-slots
			kind := replyOK
			if err != nil {
				kind = replyErr
				body = encodeRPCError(err)
			}
			if werr := writeFrame(&wmu, c, w, kind, id, body); werr != nil {
				c.Close()
			}
		})
	}
}

// Calls of the bulk class carry proposals of up to 1 MiB; the others must not queue
// behind them.
type rpcClass int

const (
	classControl rpcClass = iota
	classBulk
	rpcClasses
)

// rpcPeers holds the connections to the other peers.
type rpcPeers struct {
	dial func(ctx context.Context, id PeerID) (net.Conn, error)

	mu    sync.Mutex
	peers map[PeerID]*rpcPeer
}

type rpcPeer struct {
	classes [rpcClasses]struct {
		mu     sync.Mutex // held while dialling
		conn   *rpcConn
		failed time.Time
		err    error
	}
}

// redialAfter spaces failing dials.
const redialAfter = 50 * time.Millisecond

func (p *rpcPeers) peer(id PeerID) *rpcPeer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers == nil {
		p.peers = map[PeerID]*rpcPeer{}
	}
	r := p.peers[id]
	if r == nil {
		r = &rpcPeer{}
		p.peers[id] = r
	}
	return r
}

func (p *rpcPeers) conn(ctx context.Context, id PeerID, class rpcClass) (*rpcConn, error) {
	c := &p.peer(id).classes[class]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && !c.conn.broken() {
		return c.conn, nil
	}
	if c.err != nil && time.Since(c.failed) < redialAfter {
		return nil, c.err
	}
	nc, err := p.dial(ctx, id)
	if err != nil {
		c.conn, c.err, c.failed = nil, fmt.Errorf("%w: %w", errNotSent, err), time.Now()
		return nil, c.err
	}
	c.conn, c.err = newRPCConn(nc), nil
	return c.conn, nil
}

// call makes one call. An error that wraps errNotSent means that nothing left this peer.
func (p *rpcPeers) call(ctx context.Context, id PeerID, class rpcClass, kind rpcKind, body []byte) ([]byte, error) {
	c, err := p.conn(ctx, id, class)
	if err != nil {
		return nil, err
	}
	return c.call(ctx, kind, body)
}

func (p *rpcPeers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.peers {
		for i := range r.classes {
			c := &r.classes[i]
			c.mu.Lock()
			if c.conn != nil {
				c.conn.fail(net.ErrClosed)
			}
			c.mu.Unlock()
		}
	}
}
