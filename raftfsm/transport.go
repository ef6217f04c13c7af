package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// appendBytes caps the entries of one AppendEntries request; one larger entry goes alone. hashicorp/raft only
	// counts them, and 64 entries of 1 MiB would be one request, which a slow peer cannot take in within rpcTimeout.
	appendBytes = 1 << 20
	// rpcTimeout bounds raft's own calls, the follower's write to its disk included.
	rpcTimeout = 5 * time.Second
)

var errWithheld = errors.New("withheld, since the disk of this peer hangs")

// Dial is raft's way to another peer.
func (l *raftLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, ok := l.peerAt(string(addr))
	if !ok {
		return nil, fmt.Errorf("no member has the address %s", addr)
	}
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	return l.dial(ctx, id, string(addr), protoRaft)
}

// transport is raft's network transport with three holes closed: what a heartbeat may do
// beside the main loop, how large a request gets, and heartbeats from a leader that
// cannot write.
type transport struct {
	*raft.NetworkTransport
	disk *diskWatch

	in   chan raft.RPC
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	// role tells the term and role of the local raft; set before it starts.
	role func() (term uint64, state raft.RaftState)
	// commitCap lowers a commit index to what this peer's disk has; see ahead.go.
	commitCap func(uint64) uint64

	mu      sync.Mutex
	contact map[raft.ServerID]time.Time // last successful AppendEntries, as leader
	// roundTrip, when set, gets the time of each heartbeat that was answered.
	roundTrip *prometheus.HistogramVec
	since     map[raft.ServerID]time.Time // begin of the contact that was not broken for contactGap until then
	told      map[raft.ServerID]commitTold
}

// commitTold is the newest commit index that was sent to a follower, and the term in which it was.
type commitTold struct{ term, index uint64 }

func newTransport(nt *raft.NetworkTransport, disk *diskWatch) *transport {
	t := &transport{NetworkTransport: nt, disk: disk, in: make(chan raft.RPC), stop: make(chan struct{}), contact: map[raft.ServerID]time.Time{}, since: map[raft.ServerID]time.Time{}, told: map[raft.ServerID]commitTold{},
		commitCap: func(index uint64) uint64 { return index }}
	t.wg.Go(func() {
		for {
			select {
			case r := <-nt.Consumer():
				select {
				case t.in <- r:
				case <-t.stop:
					return
				}
			case <-t.stop:
				return
			}
		}
	})
	return t
}

// Consumer gives raft's main loop its requests.
func (t *transport) Consumer() <-chan raft.RPC { return t.in }

// SetHeartbeatHandler lets a heartbeat past the main loop only when all it does is to
// note the contact: same term, and this peer a follower. raft's handler would
// otherwise set term and role from another goroutine, under the main loop's feet.
func (t *transport) SetHeartbeatHandler(fast func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(t.heartbeats(fast))
}

func (t *transport) heartbeats(fast func(raft.RPC)) func(raft.RPC) {
	return func(r raft.RPC) {
		if a, ok := r.Command.(*raft.AppendEntriesRequest); ok {
			if term, state := t.role(); a.Term == term && state == raft.Follower {
				fast(r)
				return
			}
		}
		select {
		case t.in <- r:
		case <-t.stop:
			r.Respond(nil, raft.ErrTransportShutdown)
		}
	}
}

// trim drops the entries that are too many for one request. raft reads the request again
// afterwards to learn how far it got, so trimming it in place is enough.
func trim(a *raft.AppendEntriesRequest) {
	n := 0
	for i, e := range a.Entries {
		n += len(e.Data) + len(e.Extensions)
		if n > appendBytes && i > 0 {
			a.Entries = a.Entries[:i]
			return
		}
	}
}

// AppendEntries sends one request, capped in bytes.
func (t *transport) AppendEntries(id raft.ServerID, addr raft.ServerAddress, a *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	// Not heartbeats alone: what replication sends every CommitTimeout counts as contact as well.
	if t.disk.stalled.Load() {
		return errWithheld
	}
	trim(a)
	a.LeaderCommitIndex = t.commitCap(a.LeaderCommitIndex)
	began := time.Now()
	err := t.NetworkTransport.AppendEntries(id, addr, a, resp)
	if err == nil && len(a.Entries) == 0 && t.roundTrip != nil {
		t.roundTrip.WithLabelValues(string(id)).Observe(time.Since(began).Seconds())
	}
	if err == nil {
		t.touched(id)
		if resp.Success {
			t.tells(id, a)
		}
	}
	return err
}

// tells notes what commit index a request carries. One that does not reach the entries up to its own commit
// index leaves the follower short of it, so the lesser counts.
func (t *transport) tells(id raft.ServerID, a *raft.AppendEntriesRequest) {
	index := a.LeaderCommitIndex
	if index == 0 {
		return
	}
	last := a.PrevLogEntry
	if n := len(a.Entries); n > 0 {
		last = a.Entries[n-1].Index
	}
	index = min(index, last)
	t.mu.Lock()
	if old := t.told[id]; a.Term > old.term || a.Term == old.term && index > old.index {
		t.told[id] = commitTold{a.Term, index}
	}
	t.mu.Unlock()
}

func (t *transport) toldCommit(id raft.ServerID, term uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.told[id]; c.term == term {
		return c.index
	}
	return 0
}

func (t *transport) inTouch(id raft.ServerID, within time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.contact[id]) < within
}

// AppendEntriesPipeline opens a pipeline whose requests are capped in bytes.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, addr)
	if err != nil {
		return nil, err
	}
	return newCappedPipeline(p, t, id), nil
}

// cappedPipeline caps requests in bytes, and closes itself when the follower refused one. raft stops reading
// answers at the first that is no success, while its sender may go on; with nobody reading, the answer to the second of these
// is never taken, and the third waits for that for good: this leader would then send nothing but heartbeats to
// that follower for the rest of its term.
type cappedPipeline struct {
	raft.AppendPipeline
	t       *transport
	id      raft.ServerID
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
}

func newCappedPipeline(p raft.AppendPipeline, t *transport, id raft.ServerID) *cappedPipeline {
	c := &cappedPipeline{AppendPipeline: p, t: t, id: id, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go c.forward()
	return c
}

// forward hands the answers on until one is refused or the pipeline is closed.
func (p *cappedPipeline) forward() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			refused := f.Error() != nil || !f.Response().Success
			select {
			case p.answers <- f:
			case <-p.closed:
				return
			}
			if refused {
				p.Close()
				return
			}
		case <-p.closed:
			return
		}
	}
}

// Consumer gives raft the answers.
func (p *cappedPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close ends the pipeline, and sends that wait in it.
func (p *cappedPipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

func (p *cappedPipeline) AppendEntries(a *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if p.t.disk.stalled.Load() {
		return nil, errWithheld
	}
	trim(a)
	a.LeaderCommitIndex = p.t.commitCap(a.LeaderCommitIndex)
	f, err := p.AppendPipeline.AppendEntries(a, resp)
	if err == nil {
		p.t.tells(p.id, a) // sent is enough: if it fails, replication starts over
	}
	return f, err
}

func (t *transport) touched(id raft.ServerID) {
	now := time.Now()
	t.mu.Lock()
	if now.Sub(t.contact[id]) > contactGap {
		t.since[id] = now
	}
	t.contact[id] = now
	t.mu.Unlock()
}

// contactGap is the silence that breaks a contact; heartbeats come several times a second.
const contactGap = 2 * time.Second

// touchedSince tells whether a peer has been in unbroken contact with this leader for d.
func (t *transport) touchedSince(id raft.ServerID, d time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	return now.Sub(t.contact[id]) <= contactGap && now.Sub(t.since[id]) >= d
}

func (t *transport) lastContact(id PeerID) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.contact[raft.ServerID(id.String())]
}

// Close stops the transport.
func (t *transport) Close() error {
	t.once.Do(func() { close(t.stop) })
	err := t.NetworkTransport.Close()
	t.NetworkTransport.CloseStreams()
	t.wg.Wait()
	return err
}
