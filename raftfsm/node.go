package raftfsm

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Node is one peer: raft, its log and snapshots on disk, its peer port, and the store it applies to. It is
// a store.Proposer and a store.Leaser. All methods may be called from any goroutine.
type Node struct {
	cfg  Config
	id   PeerID
	boot uint64
	left []uint64 // see identity
	log  *slog.Logger

	began time.Time

	ctx    context.Context // ends with stop
	stop   chan struct{}
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	dead   sync.Once

	disk    *diskWatch
	logs    *logStore
	snaps   *snapStore
	fsm     *fsm
	raft    *raft.Raft
	trans   *transport
	streams *streams
	rpc     *rpcPeers

	lead     *leadTracker
	prop     *proposer
	reads    *reader
	confirms *confirmer
	nudge    *nudger
	leases   *lessor
	metrics  *metrics
	changing chan struct{} // held during a membership change at the leader
	removed  atomic.Bool
	seek     chan struct{} // another peer asks this one to look around
	voted    atomic.Bool   // this peer was seen to be a voter, which it stays
	// replacedOnce: it is on disk that this peer's cluster was replaced.
	replacedOnce atomic.Bool

	closers []func() error // in order of opening
	snapped snapState
}

// fatal reports, once, that this peer must end.
func (n *Node) fatal(err error) {
	n.dead.Do(func() {
		n.log.Error("this peer cannot go on", "error", err)
		go n.cfg.OnFatal(err)
	})
}

func (n *Node) stopping() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

func (n *Node) sinceContact() time.Duration {
	if n.raft.State() == raft.Leader {
		return 0
	}
	last := n.raft.LastContact()
	if last.IsZero() {
		return time.Since(n.began)
	}
	return time.Since(last)
}

// wire connects the state machine to the Node.
func (n *Node) wire() {
	n.fsm.resolve = n.prop.resolve
	n.fsm.barrier = n.lead.applied
	n.fsm.lease = n.leases.changed
	n.fsm.restored = n.prop.restored
	n.fsm.committed = n.nudge.committed
	n.fsm.applying = func() func() {
		began := time.Now()
		return func() { n.metrics.apply.Observe(time.Since(began).Seconds()) }
	}
	n.fsm.durable = func(index uint64) error { return n.logs.durable(index) } // the log is opened later
	n.fsm.fatal = n.fatal
	n.fsm.stop = n.stop
}

// start runs what runs for the life of the Node.
func (n *Node) start() {
	n.wg.Go(func() { n.disk.run(n.stop) })
	n.wg.Go(n.lead.run)
	n.wg.Go(n.prop.run)
	n.wg.Go(n.reads.run)
	n.wg.Go(n.leases.run)
	n.wg.Go(n.leases.checkpoints)
	n.wg.Go(n.snapshots)
	n.wg.Go(n.announce)
	n.wg.Go(n.promoteWaiting)
	n.wg.Go(n.seekExpected)
}

// admit decides on an incoming connection of a peer whose certificate was checked.
func (n *Node) admit(from PeerID) byte {
	if n.fsm.isRemoved(from) {
		return helloRemoved
	}
	servers := n.raft.GetConfiguration().Configuration().Servers
	if len(servers) == 0 {
		return helloOK // this peer waits to be added: whoever leads does not know it is expected
	}
	for _, s := range servers {
		if string(s.ID) == from.String() {
			return helloOK
		}
	}
	if _, self := n.server(n.id); !self {
		return helloOK // our configuration is old
	}
	return helloUnknown
}

func (n *Node) dialRPC(ctx context.Context, id PeerID) (net.Conn, error) {
	s, ok := n.server(id)
	if !ok {
		return nil, fmt.Errorf("peer %v: %w", id, ErrNotMember)
	}
	return n.streams.dial(ctx, id, string(s.Address), protoRPC)
}

func (n *Node) peerAt(addr string) (PeerID, bool) {
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if string(s.Address) == addr {
			id, err := ParsePeerID(string(s.ID))
			return id, err == nil
		}
	}
	return 0, false
}

// wasRemoved is called when another peer says that this one is no member any more.
func (n *Node) wasRemoved() {
	if n.removed.CompareAndSwap(false, true) {
		n.fatal(ErrRemoved)
	}
}

// serve answers the peer RPC on one connection.
func (n *Node) serve(c net.Conn, from PeerID) {
	serveRPC(n.ctx, c, func(ctx context.Context, kind rpcKind, body []byte, done respond) {
		if n.fsm.isRemoved(from) { // the connection is older than the removal
			done(nil, ErrRemoved)
			return
		}
		switch kind {
		case rpcConfirm:
			done(nil, n.confirmHere(body))
		case rpcPropose:
			n.prop.forwardedHere(from, body, done)
		case rpcStatus:
			done(json.Marshal(n.state()))
		case rpcReadIndex:
			go func() {
				ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
				defer cancel()
				index, err := n.confirms.index(ctx)
				done(binary.BigEndian.AppendUint64(nil, index), err)
			}()
		case rpcLease:
			go func() { done(n.serveLease(ctx, body)) }()
		case rpcMember:
			go func() { done(nil, n.serveMember(ctx, body)) }()
		case rpcSeek:
			select {
			case n.seek <- struct{}{}:
			default: // it is about to
			}
			done(nil, nil)
		default:
			done(nil, fmt.Errorf("call of kind %d is not known to this version", kind))
		}
	})
}

func (n *Node) serveLease(ctx context.Context, body []byte) ([]byte, error) {
	if len(body) != 9 {
		return nil, errRecord
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	granted, left, err := n.leaseHere(ctx, body[0], int64(binary.BigEndian.Uint64(body[1:])))
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(granted)), uint64(left)), nil
}

func (n *Node) serveMember(ctx context.Context, body []byte) error {
	var op memberOp
	if err := json.Unmarshal(body, &op); err != nil {
		return fmt.Errorf("malformed change of members: %w", err)
	}
	if !n.lead.current().self {
		return raft.ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	return n.changeHere(ctx, op)
}

// atLeader calls f with whoever leads, again and again while the call did not reach a leader, until ctx or
// the request timeout ends.
func (n *Node) atLeader(ctx context.Context, f func(context.Context, leader) error) error {
	bounded, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	for {
		who := n.lead.current()
		err := error(rpctypes.ErrGRPCNoLeader)
		var pause <-chan time.Time
		if who.id != 0 {
			if err = f(bounded, who); err == nil {
				return nil
			}
			if !tryElsewhere(err) && bounded.Err() == nil {
				return err
			}
			pause = time.After(retryAfter)
		}
		select {
		case <-pause:
		case <-who.changed:
		case <-n.stop:
			return ErrStopped
		case <-bounded.Done():
			switch {
			case errors.Is(ctx.Err(), context.Canceled):
				return ctx.Err()
			case who.id == 0:
				return rpctypes.ErrGRPCNoLeader
			}
			n.log.Debug("a call to the leader timed out", "leader", who.id.String(), "error", err)
			return rpctypes.ErrGRPCTimeout
		}
	}
}

// tryElsewhere tells whether a call that may be repeated failed for want of a leader.
func tryElsewhere(err error) bool {
	var re *rpcError
	switch {
	case errors.As(err, &re):
		return re.code == codeNotLeader || re.code == codeNotReady || re.code == codeUnknown
	case errors.Is(err, errNotReady), errors.Is(err, errConnLost), nothingDone(err), errors.Is(err, raft.ErrLeadershipLost):
		return true
	}
	return false
}

// Errors of this package that keep their identity across the peer RPC.
var namedErrors = []error{ErrNameTaken, ErrNotMember, ErrLagging, ErrQuorum, ErrRemoved, ErrNotStarted, ErrUnhealthy, ErrAddressTaken, ErrNotLearner, ErrTooManyLearners, ErrReplaced}

// codeNamed+i is namedErrors[i].
const codeNamed rpcCode = 64

func encodeRPCError(err error) []byte {
	var re *rpcError
	switch {
	case errors.As(err, &re):
		return append([]byte{byte(re.code)}, re.text...)
	case errors.Is(err, raft.ErrNotLeader):
		return append([]byte{byte(codeNotLeader)}, err.Error()...)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, errNotReady):
		return append([]byte{byte(codeNotReady)}, err.Error()...)
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		return append([]byte{byte(codeUnknown)}, err.Error()...)
	}
	for i, e := range namedErrors {
		if errors.Is(err, e) {
			return append([]byte{byte(codeNamed) + byte(i)}, err.Error()...)
		}
	}
	if st, ok := status.FromError(err); ok {
		return append([]byte{byte(codeGRPC), byte(st.Code())}, st.Message()...)
	}
	return append([]byte{byte(codeOther)}, err.Error()...)
}

// decoded gives an error of the other side its identity back.
func decodeRPCError(code rpcCode, text string) error {
	if code == codeGRPC && text != "" {
		return status.Error(codes.Code(text[0]), text[1:])
	}
	if i := int(code) - int(codeNamed); i >= 0 && i < len(namedErrors) {
		return &namedError{namedErrors[i], text}
	}
	return &rpcError{code, text}
}

type namedError struct {
	is   error
	text string
}

func (e *namedError) Error() string { return e.text }
func (e *namedError) Unwrap() error { return e.is }

// Close stops this peer: it takes no more proposals, hands the leadership over if it has it (for at most a
// few hundred milliseconds), and releases port and files. Calls that wait get ErrStopped, or an unknown outcome.
func (n *Node) Close() error {
	n.once.Do(n.shutdown)
	return nil
}

func (n *Node) shutdown() {
	if n.raft.State() == raft.Leader && len(n.Members()) > 1 {
		ctx, cancel := context.WithTimeout(context.Background(), n.cfg.ElectionTimeout+time.Second)
		if err := n.transferHere(ctx, 0); err != nil {
			n.log.Warn("stopping without handing the leadership over", "error", err)
		}
		cancel()
	}
	n.prop.close()
	close(n.stop)
	n.cancel()
	n.lead.close()
	down := make(chan error, 1)
	go func() { down <- n.raft.Shutdown().Error() }()
	n.streams.cancel() // nothing new comes in while raft ends
	select {
	case err := <-down:
		if err != nil {
			n.log.Warn("raft did not shut down in order", "error", err)
		}
	case <-time.After(shutdownFor):
		n.log.Error("raft did not shut down: a call to the disk hangs; the files stay open until the process ends", "waited", shutdownFor)
		n.release()
		return
	}
	n.release()
	n.wg.Wait()
	if !n.logs.close(shutdownFor) {
		n.log.Error("a write of the raft log hangs; the files stay open until the process ends", "waited", shutdownFor)
		return
	}
	n.closeFiles()
}

const shutdownFor = 10 * time.Second

// release closes the port and every connection.
func (n *Node) release() {
	n.trans.Close()
	n.rpc.close()
	n.streams.close()
}

func (n *Node) closeFiles() {
	for i := len(n.closers) - 1; i >= 0; i-- {
		if err := n.closers[i](); err != nil {
			n.log.Warn("a file of the raft directory did not close in order", "error", err)
		}
	}
	n.closers = nil
}
