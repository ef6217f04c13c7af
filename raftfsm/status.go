package raftfsm

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Status is the cluster as one peer sees it.
type Status struct {
	ID      PeerID
	Name    string
	Cluster uint64
	Leader  PeerID // 0 if nobody known leads
	// IsLeader: this peer leads and has applied all before its term.
	IsLeader bool
	Term     uint64
	Commit   uint64 // commit index that this peer knows
	Applied  uint64 // last index applied to the local store
	Last     uint64 // last index of the local log
	// Removed: this peer is no longer a member.
	Removed bool
	// DiskFull: free space is below Config.MinFreeBytes. DiskStalled: a call to the disk hangs.
	DiskFull    bool
	DiskStalled bool
	DiskFree    int64 // bytes
	Peers       []PeerStatus
}

// PeerStatus is one member as it answered just now.
type PeerStatus struct {
	Member    Member
	Reachable bool
	Error     string // why not
	Term      uint64
	Applied   uint64
	// Lag is how many entries the peer is behind the commit index of the one who asked.
	Lag uint64
	// LastContact is when the leader last heard from the peer; zero on a follower, or never.
	LastContact time.Time
	Version     string
	DiskFree    int64
}

// peerState is what a peer says about itself.
type peerState struct {
	ID       PeerID `json:"id"`
	Term     uint64 `json:"term"`
	Leader   PeerID `json:"leader"`
	Commit   uint64 `json:"commit"`
	Applied  uint64 `json:"applied"`
	Last     uint64 `json:"last"`
	Version  string `json:"version"`
	DiskFree int64  `json:"diskFree"`
}

func (n *Node) state() peerState {
	applied, _ := n.fsm.applied()
	return peerState{
		ID: n.id, Term: n.raft.CurrentTerm(), Leader: n.lead.current().id,
		Commit: n.raft.CommitIndex(), Applied: applied, Last: n.raft.LastIndex(),
		Version: n.cfg.Version, DiskFree: n.disk.freeNow.Load(),
	}
}

func (n *Node) askStatus(ctx context.Context, id PeerID) (peerState, error) {
	var st peerState
	b, err := n.rpc.call(ctx, id, classControl, rpcStatus, nil)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(b, &st); err != nil {
		return st, fmt.Errorf("decode the status of peer %v: %w", id, err)
	}
	return st, nil
}

// Status asks all members and waits for each at most one second, or until ctx ends.
func (n *Node) Status(ctx context.Context) Status {
	self := n.state()
	s := Status{
		ID: n.id, Name: n.cfg.Name, Cluster: n.ClusterID(), Leader: self.Leader,
		IsLeader: n.lead.readyTerm() != 0, Term: self.Term, Commit: self.Commit, Applied: self.Applied, Last: self.Last,
		Removed: n.removed.Load(), DiskFull: n.disk.full.Load(), DiskStalled: n.disk.stalled.Load(), DiskFree: self.DiskFree,
	}
	members := n.Members()
	s.Peers = make([]PeerStatus, len(members))
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var wg sync.WaitGroup
	leads := n.raft.State() == raft.Leader
	for i, m := range members {
		wg.Go(func() {
			p := PeerStatus{Member: m, Version: m.Version}
			st, err := self, error(nil)
			if m.ID != n.id {
				if leads {
					p.LastContact = n.trans.lastContact(m.ID)
				}
				st, err = n.askStatus(ctx, m.ID)
			}
			if err != nil {
				p.Error = err.Error()
			} else {
				p.Reachable, p.Term, p.Applied, p.DiskFree = true, st.Term, st.Applied, st.DiskFree
				p.Lag = s.Commit - min(st.Applied, s.Commit)
				if st.Version != "" {
					p.Version = st.Version
				}
			}
			s.Peers[i] = p
		})
	}
	wg.Wait()
	return s
}

// ID is this peer's.
func (n *Node) ID() PeerID { return n.id }

// ClusterID is the cluster's; 0 until this peer has learnt it.
func (n *Node) ClusterID() uint64 { return n.fsm.clusterID() }

// Leader is the leader that this peer knows, 0 if none, and the raft term.
func (n *Node) Leader() (PeerID, uint64) {
	who := n.lead.current()
	return who.id, who.term
}

// Learner tells whether this peer is a member that does not vote, as far as it knows.
func (n *Node) Learner() bool {
	if n.voted.Load() {
		return false
	}
	s, ok := n.server(n.id)
	if ok && s.Suffrage == raft.Voter {
		n.voted.Store(true)
		return false
	}
	return ok
}

// IsLeader tells whether this peer leads, has applied all before its term, and raft agrees now.
func (n *Node) IsLeader() bool { return n.lead.readyTerm() != 0 }

// Indexes returns the raft term, the commit index that this peer knows, and the last index applied to the
// local store.
func (n *Node) Indexes() (term, commit, applied uint64) {
	st := n.state()
	return st.Term, st.Commit, st.Applied
}
