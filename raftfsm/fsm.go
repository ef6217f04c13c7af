package raftfsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

// errStaleTerm is the result of a record that was bound to a raft term that had ended.
var errStaleTerm = errors.New("the proposer was not the leader any more when the request was put in order")

// outcome is the result of a record that this peer proposed.
type outcome struct {
	seq    uint64
	result store.Result
}

// fsm is the replicated state: the store, who the members are, and which records were
// applied. raft calls it from one goroutine.
type fsm struct {
	store *store.Store
	self  PeerID
	boot  uint64

	// Hooks into the Node, called from raft's goroutine.
	resolve   func([]outcome)          // results of own records, in order
	barrier   func(term uint64)        // an own leadership barrier was applied
	lease     func(store.LeaseChange)  // a lease was granted or revoked
	restored  func(*session)           // the state was replaced; own session, may be nil
	committed func(index, term uint64) // a batch of entries was applied
	applying  func() (done func())     // a batch is applied until done is called
	durable   func(index uint64) error // waits until the own disk has an entry; see ahead.go
	fatal     func(error)
	stop      <-chan struct{}
	ready     chan struct{} // closed when the Node holds its raft, which the hooks use

	sessions sessions

	mu      sync.RWMutex // guards what follows; written by raft's goroutine alone
	cluster uint64
	members map[PeerID]Member
	removed map[PeerID]struct{}
	// Set by Restore alone and never changed: see replace.go.
	replaced []uint64
	expects  []Member
	index    uint64 // last applied
	term     uint64
	waiters  []indexWaiter
}

type indexWaiter struct {
	index uint64
	ch    chan struct{}
}

func newFSM(s *store.Store, self PeerID, boot uint64) *fsm {
	return &fsm{store: s, self: self, boot: boot, sessions: sessions{}, members: map[PeerID]Member{}, removed: map[PeerID]struct{}{}, ready: make(chan struct{}),
		durable: func(uint64) error { return nil }, applying: func() func() { return func() {} }}
}

// Apply applies one entry; see ApplyBatch.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies committed entries. It gives raft nothing back: the records' proposers
// wait for their own.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	<-f.ready
	if f.durable(logs[len(logs)-1].Index) != nil {
		return make([]any, len(logs)) // stopping: what is not on disk here is applied nowhere
	}
	defer f.applying()()
	var own []outcome
	for _, l := range logs {
		if l.Type != raft.LogCommand {
			continue
		}
		records, err := openEntry(l.Data)
		if err == nil {
			err = eachRecord(records, func(r record) error {
				res, applied := f.record(&r, l)
				if applied && r.peer == f.self && r.boot == f.boot && r.kind != recBarrier {
					own = append(own, outcome{r.seq, res})
				}
				return nil
			})
		}
		if err != nil {
			// Going on would make this peer differ from the others for good.
			f.fatal(fmt.Errorf("entry %d of the raft log cannot be applied: %w; if this peer alone fails so, remove it from the cluster, empty its directory and join it again", l.Index, err))
			<-f.stop
			break
		}
	}
	last := logs[len(logs)-1]
	f.advance(last.Index, last.Term)
	f.committed(last.Index, last.Term)
	if len(own) > 0 {
		f.resolve(own)
	}
	return make([]any, len(logs))
}

// record applies one record; false when it is not to be applied (again).
func (f *fsm) record(r *record, l *raft.Log) (store.Result, bool) {
	if r.kind == recBarrier {
		if r.peer == f.self && r.boot == f.boot {
			f.barrier(l.Term)
		}
		return store.Result{}, true
	}
	if _, gone := f.removed[r.peer]; gone {
		return store.Result{}, false
	}
	if !f.sessions.admit(r) {
		return store.Result{}, false
	}
	if r.term != 0 && r.term != l.Term {
		return store.Result{Err: errStaleTerm}, true
	}
	switch r.kind {
	case recRequest:
		var req pb.InternalRaftRequest
		if err := proto.Unmarshal(r.payload, &req); err != nil {
			return store.Result{Err: fmt.Errorf("the request does not decode: %w", err)}, true
		}
		res := f.store.Apply(&req)
		if res.Err == nil {
			switch {
			case req.LeaseGrant != nil:
				f.lease(store.LeaseChange{Kind: store.LeaseGranted, Lease: store.Lease{ID: req.LeaseGrant.ID, TTL: max(req.LeaseGrant.TTL, store.MinLeaseTTL)}})
			case req.LeaseRevoke != nil:
				f.lease(store.LeaseChange{Kind: store.LeaseRevoked, Lease: store.Lease{ID: req.LeaseRevoke.ID}})
			case req.LeaseCheckpoint != nil:
				for _, c := range req.LeaseCheckpoint.Checkpoints {
					f.lease(store.LeaseChange{Kind: store.LeaseCheckpointed, Lease: store.Lease{ID: c.ID, Remaining: c.Remaining_TTL}})
				}
			}
		}
		return res, true
	case recMember:
		return store.Result{Err: f.setMember(r.payload)}, true
	case recMemberGone:
		return store.Result{Err: f.dropMember(r.payload)}, true
	case recClusterInit:
		return store.Result{Err: f.initCluster(r.payload)}, true
	}
	// A newer peer wrote a record of a kind that this program does not know. Skipping it
	// would make this peer differ.
	f.fatal(fmt.Errorf("entry %d of the raft log holds a record of kind %d, which this program does not know: upgrade this peer", l.Index, r.kind))
	<-f.stop
	return store.Result{}, false
}

func (f *fsm) setMember(payload []byte) error {
	var m Member
	if err := json.Unmarshal(payload, &m); err != nil || m.ID == 0 {
		return fmt.Errorf("malformed member: %v", err)
	}
	m.Voter = false // the raft configuration says
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, gone := f.removed[m.ID]; gone {
		return fmt.Errorf("peer %v (%s): %w", m.ID, m.Name, ErrRemoved)
	}
	for _, o := range f.members { // order does not matter: at most one can collide, as names are unique
		if o.ID != m.ID && o.Name == m.Name && m.Name != "" {
			return fmt.Errorf("%w: %q is the name of peer %v; remove that peer first, or join under another name", ErrNameTaken, m.Name, o.ID)
		}
	}
	f.members[m.ID] = m
	return nil
}

func (f *fsm) dropMember(payload []byte) error {
	var m Member
	if err := json.Unmarshal(payload, &m); err != nil || m.ID == 0 {
		return fmt.Errorf("malformed member: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.members, m.ID)
	f.removed[m.ID] = struct{}{}
	if m.ID != f.self {
		delete(f.sessions, m.ID)
	}
	return nil
}

func (f *fsm) initCluster(payload []byte) error {
	var id uint64
	if err := json.Unmarshal(payload, &id); err != nil || id == 0 {
		return fmt.Errorf("malformed cluster ID: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cluster == 0 {
		f.cluster = id
	}
	return nil
}

func (f *fsm) clusterID() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.cluster
}

// memberList returns the members, ordered by ID.
func (f *fsm) memberList() []Member {
	f.mu.RLock()
	defer f.mu.RUnlock()
	out := make([]Member, 0, len(f.members))
	for _, m := range f.members {
		out = append(out, m)
	}
	slices.SortFunc(out, compareMembers)
	return out
}

func (f *fsm) member(id PeerID) (Member, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	m, ok := f.members[id]
	return m, ok
}

func (f *fsm) removedList() []PeerID {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return slices.Sorted(maps.Keys(f.removed))
}

func (f *fsm) isRemoved(id PeerID) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, ok := f.removed[id]
	return ok
}

func (f *fsm) applied() (index, term uint64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.index, f.term
}

func (f *fsm) advance(index, term uint64) {
	f.mu.Lock()
	f.index, f.term = index, term
	keep := f.waiters[:0]
	for _, w := range f.waiters {
		if w.index <= index {
			close(w.ch)
		} else {
			keep = append(keep, w)
		}
	}
	clear(f.waiters[len(keep):])
	f.waiters = keep
	f.mu.Unlock()
}

// reached returns a channel that is closed once index is applied. A waiter that gives up leaves
// it to be closed later.
func (f *fsm) reached(index uint64) <-chan struct{} {
	ch := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.index >= index {
		close(ch)
	} else {
		f.waiters = append(f.waiters, indexWaiter{index, ch})
	}
	return ch
}
