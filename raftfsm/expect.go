package raftfsm

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// protoReplaced is a connection by which the leader of a new cluster looks for a peer
// that it expects, and tells it which clusters the new one has replaced. The caller
// sends the hello, then the number of clusters (4 bytes) and their IDs (8 bytes each,
// big endian); the answer is one byte.
const protoReplaced = "tripod-replaced/1"

// Answers, beside the refusals of a hello.
const (
	expectedWaits    byte = 32 + iota // it belongs to no cluster and may be added
	expectedMember                    // it belongs to the new cluster
	expectedReplaced                  // it belonged to a cluster that was replaced, and starts anew
)

// maxReplaced bounds what is read and remembered; older ones are forgotten.
const maxReplaced = 64

// ErrReplaced means that this peer's cluster was replaced by another one. Its state is
// put aside when the peer is opened again, and the new cluster's leader adds it.
var ErrReplaced = errors.New("the cluster of this peer was replaced by a restore on another peer: this peer starts anew and is added to the new cluster")

const (
	expectPause   = 2 * time.Second
	expectTimeout = 5 * time.Second
)

// expected returns the peers that are to become members and are none yet: not those
// whose name or address another member has taken.
func (f *fsm) expected() []Member {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var out []Member
	for _, e := range f.expects {
		_, gone := f.removed[e.ID]
		taken := false
		for _, m := range f.members { // order does not matter: any of them will do
			taken = taken || m.ID != e.ID && (m.Name == e.Name || m.PeerAddr == e.PeerAddr)
		}
		if !gone && !taken {
			out = append(out, e)
		}
	}
	return out
}

// Expected returns the peers of an earlier cluster, which this one has replaced, that
// have not become voters yet, ordered by ID.
func (n *Node) Expected() []Member {
	var out []Member
	members := n.Members()
	for _, e := range n.fsm.expected() {
		if !slices.ContainsFunc(members, func(m Member) bool { return m.ID == e.ID && m.Voter }) {
			out = append(out, e)
		}
	}
	return out
}

// Replaced returns the IDs of the clusters whose place this one took, the last first.
func (n *Node) Replaced() []uint64 {
	n.fsm.mu.RLock()
	defer n.fsm.mu.RUnlock()
	return slices.Clone(n.fsm.replaced)
}

// Removed returns the IDs of the peers that were removed from the cluster, in order.
func (n *Node) Removed() []PeerID { return n.fsm.removedList() }

// seekExpected runs for the life of the Node: the leader seeks the peers that it
// expects and makes them members.
func (n *Node) seekExpected() {
	said := map[PeerID]string{}
	for {
		select {
		case <-n.stop:
			return
		case <-time.After(expectPause):
		}
		if n.lead.readyTerm() == 0 {
			continue
		}
		for _, m := range n.Expected() {
			ctx, cancel := context.WithTimeout(n.ctx, expectTimeout)
			state, err := n.fetch(ctx, m)
			cancel()
			if err != nil {
				state = err.Error()
			}
			if said[m.ID] != state && !n.stopping() {
				said[m.ID] = state
				n.log.Info("a peer of the replaced cluster is expected", "peer", m.ID.String(), "name", m.Name, "address", m.PeerAddr, "state", state)
			}
		}
	}
}

// fetch takes one step towards making an expected peer a voter, and says how far it is.
func (n *Node) fetch(ctx context.Context, m Member) (string, error) {
	if _, ok := n.server(m.ID); ok {
		err := n.Promote(ctx, m.ID)
		if err != nil && !errors.Is(err, ErrLagging) {
			return "", err
		}
		return "it catches up", nil
	}
	code, err := n.streams.tellReplaced(ctx, m.ID, m.PeerAddr, n.Replaced())
	switch {
	case err != nil:
		return "", err
	case code == expectedReplaced:
		return "it starts anew", nil
	case code != expectedWaits && code != expectedMember:
		return "", helloError(code)
	}
	m.Voter = false
	if err := n.AddNonvoter(ctx, m); err != nil {
		return "", err
	}
	return "it is added", nil
}

// tellReplaced asks a peer what it belongs to, and tells it what was replaced.
func (s *streams) tellReplaced(ctx context.Context, peer PeerID, addr string, replaced []uint64) (byte, error) {
	c, untrack, err := s.connect(ctx, peer, addr, protoReplaced)
	if err != nil {
		return 0, err
	}
	defer untrack()
	defer c.Close()
	b := binary.BigEndian.AppendUint32(s.hello(peer), uint32(len(replaced)))
	for _, id := range replaced {
		b = binary.BigEndian.AppendUint64(b, id)
	}
	var code [1]byte
	if _, err = c.Write(b); err == nil {
		_, err = io.ReadFull(c, code[:])
	}
	if err != nil {
		return 0, fmt.Errorf("ask peer %v at %s what it belongs to: %w", peer, addr, err)
	}
	return code[0], nil
}

// answerReplaced answers such a connection.
func (s *streams) answerReplaced(c *tls.Conn) error {
	cluster, from, to, err := readHello(c)
	if err != nil {
		return err
	}
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return fmt.Errorf("read what was replaced: %w", err)
	}
	count := binary.BigEndian.Uint32(head[:])
	if count > maxReplaced {
		return fmt.Errorf("peer %v tells of %d clusters that were replaced", from, count)
	}
	b := make([]byte, 8*count)
	if _, err := io.ReadFull(c, b); err != nil {
		return fmt.Errorf("read what was replaced: %w", err)
	}
	own := s.cluster()
	code := helloWrongCluster
	switch {
	case to != s.self:
		code = helloWrongPeer
	case own == 0:
		code = expectedWaits
	case own == cluster:
		code = expectedMember
	}
	for ; code == helloWrongCluster && len(b) > 0; b = b[8:] {
		if binary.BigEndian.Uint64(b) == own {
			code = expectedReplaced
		}
	}
	if code == expectedReplaced {
		// The answer promises that this peer will start anew.
		if err := s.replaced(cluster, from); err != nil {
			return err
		}
	}
	_, err = c.Write([]byte{code})
	return err
}

// wasReplaced is called when a peer that belongs to a new cluster says that it has
// replaced the one of this peer.
func (n *Node) wasReplaced(by uint64, from PeerID) error {
	if n.fsm.isRemoved(from) {
		return fmt.Errorf("peer %v, which was removed, says that this cluster was replaced", from)
	}
	if !n.replacedOnce.CompareAndSwap(false, true) {
		return nil
	}
	n.log.Warn("this cluster was replaced", "by", fmt.Sprintf("%016x", by), "told by", from.String())
	files := newOSFiles()
	left := append(slices.Clone(n.left), n.ClusterID())
	left = left[max(0, len(left)-maxReplaced):]
	err := writeIdentity(files, n.cfg.Dir, identity{ID: n.id, Boot: n.boot, Left: left})
	if err == nil {
		err = markReplaced(files, n.cfg.Dir, n.ClusterID(), false)
	}
	if err != nil {
		n.replacedOnce.Store(false)
		return fmt.Errorf("note that this cluster was replaced: %w", err)
	}
	n.fatal(ErrReplaced)
	return nil
}
