package raftfsm

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A refused nudge is sent again after nudgeAgain, then after twice that, and so on up to nudgeLast.
const (
	nudgeAgain = time.Millisecond
	nudgeLast  = 2 * time.Second
)

// nudger tells followers at once what was committed. raft tells them with the next entries, or when
// Config.CommitTimeout has passed: tens of milliseconds by which a follower's own proposals would be answered
// late, and its watchers told late, whenever there is little else to replicate.
//
// What it sends is raft's own empty AppendEntries, of the term of the entry it is about, with that entry as the
// previous one and as the commit index. As the entry is committed in that term this is true whoever leads by the
// time it arrives; a follower whose log does not hold the entry refuses, and nothing happens.
type nudger struct {
	n *Node

	mu    sync.Mutex
	index uint64
	term  uint64
	busy  map[PeerID]bool
}

// committed is called at the leader when the entry at index, of its own term, was applied.
func (d *nudger) committed(index, term uint64) {
	if d.n.raft.State() != raft.Leader || d.n.raft.CurrentTerm() != term {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.index, d.term = index, term
	for _, s := range d.n.raft.GetConfiguration().Configuration().Servers {
		id, err := ParsePeerID(string(s.ID))
		if err != nil || id == d.n.id || d.busy[id] || !d.n.trans.inTouch(s.ID, d.n.cfg.HeartbeatTimeout) {
			continue
		}
		d.busy[id] = true
		go d.tell(id, s.Address)
	}
}

// tell tells one follower until it knows what is committed, and gives up, for raft's own replication to see to it, when it
// cannot be reached. A follower refuses what it does not have yet: the request overtook the entry on another connection,
// or the follower's disk is the slowest.
func (d *nudger) tell(id PeerID, addr raft.ServerAddress) {
	sid := raft.ServerID(id.String())
	pause := nudgeAgain
	for {
		d.mu.Lock()
		index, term := d.index, d.term
		if d.n.trans.toldCommit(sid, term) >= index || d.n.stopping() || pause > nudgeLast {
			d.busy[id] = false
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		self := []byte(d.n.cfg.AdvertisePeer)
		req := raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(d.n.id.String()), Addr: self},
			Term:      term, Leader: self,
			PrevLogEntry: index, PrevLogTerm: term, LeaderCommitIndex: index,
		}
		var resp raft.AppendEntriesResponse
		err := d.n.trans.AppendEntries(sid, addr, &req, &resp)
		switch {
		case err == nil && resp.Success:
			pause = nudgeAgain
		case err == nil && resp.Term == term:
			select {
			case <-time.After(pause):
			case <-d.n.stop:
			}
			pause *= 2
		default:
			d.mu.Lock()
			d.busy[id] = false
			d.mu.Unlock()
			return
		}
	}
}
