package raftfsm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/tripod-cluster/tripod/store"
)

// Offline is what the raft directory of a peer that does not run holds.
type Offline struct {
	ID      PeerID
	Cluster uint64 // 0: the peer never belonged to one
	// Term is the last one that the peer took part in. LastIndex and LastTerm are of
	// the last entry in its snapshot or log: of two peers, the one with the greater
	// LastTerm, or with the same one and the greater LastIndex, has everything that
	// the other one has.
	Term, LastIndex, LastTerm uint64
	// Members are the cluster's, Removed those that were removed; Replaced are the
	// clusters that this one took the place of, Expected the members of the last one
	// of them that are to come back.
	Members  []Member
	Removed  []PeerID
	Replaced []uint64
	Expected []Member
	// Store holds the state with every entry of the log applied, also with the last
	// ones, which may not have been committed.
	Store *store.Store
}

// ErrNoState means that a raft directory holds no state of any cluster.
var ErrNoState = errors.New("there is no state of a cluster")

// ReadOffline reads the raft directory of a peer that does not run. It mends what a
// crash left behind, as a start of the peer would, and changes nothing else. Errors:
// ErrNoState; damage, by file and entry; another process uses the directory.
func ReadOffline(dir string, log *slog.Logger) (*Offline, error) {
	o, err := readOffline(dir, log)
	if err != nil {
		return nil, fmt.Errorf("read the raft directory %s: %w", dir, err)
	}
	return o, nil
}

func readOffline(dir string, log *slog.Logger) (o *Offline, err error) {
	id, err := readIdentity(dir)
	if err != nil {
		return nil, err
	}
	if id.ID == 0 {
		return nil, ErrNoState
	}
	n, err := offlineNode(dir, log)
	if err != nil {
		return nil, err
	}
	defer n.closeFiles()
	if err := finishReplace(newOSFiles(), dir); err != nil {
		return nil, err
	}
	var failed error
	n.fsm = offlineFSM(n, id.ID, func(err error) { failed = err })
	stable, err := n.openFiles(newOSFiles())
	if err != nil {
		return nil, err
	}
	o = &Offline{ID: id.ID, Store: n.cfg.Store}
	if o.Term, err = stable.GetUint64([]byte(keyCurrentTerm)); err != nil && err.Error() != errNotFound.Error() {
		return nil, fmt.Errorf("read the raft term: %w", err)
	}
	servers, err := n.replay(o, &failed)
	if err != nil {
		return nil, err
	}
	if o.LastIndex == 0 {
		return nil, ErrNoState
	}
	f := n.fsm
	o.Cluster, o.Replaced = f.cluster, f.replaced
	o.Removed = slices.Sorted(maps.Keys(f.removed))
	o.Expected = f.expected()
	for _, s := range servers {
		id, err := ParsePeerID(string(s.ID))
		if err != nil {
			continue
		}
		m := f.members[id]
		m.ID, m.PeerAddr, m.Voter = id, string(s.Address), s.Suffrage == raft.Voter
		o.Members = append(o.Members, m)
	}
	slices.SortFunc(o.Members, compareMembers)
	return o, nil
}

// offlineNode is a Node that has the directory's lock and never starts.
func offlineNode(dir string, log *slog.Logger) (*Node, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg := Config{Dir: dir, Name: "offline", ListenPeer: "127.0.0.1:0", AdvertisePeer: "127.0.0.1:1", Logger: log, Store: store.New(store.Options{}),
		TLS: func() (*tls.Config, *tls.Config, error) { return nil, nil, errors.ErrUnsupported }, OnFatal: func(error) {}}
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: cfg.Logger, stop: make(chan struct{})}
	close(n.stop)
	n.disk = newDiskWatch(&n.cfg, n.fatal)
	if err := n.lock(newOSFiles()); err != nil {
		return nil, err
	}
	return n, nil
}

// offlineFSM is a state machine that nobody listens to.
func offlineFSM(n *Node, self PeerID, fatal func(error)) *fsm {
	f := newFSM(n.cfg.Store, self, 0)
	f.resolve = func([]outcome) {}
	f.barrier = func(uint64) {}
	f.lease = func(store.LeaseChange) {}
	f.restored = func(*session) {}
	f.committed = func(uint64, uint64) {}
	f.fatal = fatal
	f.stop = n.stop
	close(f.ready)
	return f
}

// replay applies the log behind the snapshot that was loaded, and returns the last raft
// configuration in them.
func (n *Node) replay(o *Offline, failed *error) ([]raft.Server, error) {
	var servers []raft.Server
	loaded, _ := n.fsm.applied()
	snaps, err := n.snaps.List()
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	for _, s := range snaps {
		if s.Index == loaded {
			o.LastIndex, o.LastTerm, servers = s.Index, s.Term, s.Configuration.Servers
			break
		}
	}
	first, err := n.logs.FirstIndex()
	if err != nil {
		return nil, fmt.Errorf("read the raft log: %w", err)
	}
	last, err := n.logs.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read the raft log: %w", err)
	}
	for i := max(first, o.LastIndex+1); last > 0 && i <= last; i++ {
		e := &raft.Log{}
		if err := n.logs.GetLog(i, e); err != nil {
			return nil, fmt.Errorf("read entry %d of the raft log: %w", i, err)
		}
		switch e.Type {
		case raft.LogCommand:
			n.fsm.ApplyBatch([]*raft.Log{e})
		case raft.LogConfiguration:
			servers = raft.DecodeConfiguration(e.Data).Servers
		}
		if *failed != nil {
			return nil, *failed
		}
		o.LastIndex, o.LastTerm = e.Index, e.Term
	}
	return servers, nil
}
