package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
	"go.etcd.io/bbolt"
)

const (
	stableFile = "raft.db"
	walDir     = "wal"
	lockFile   = "lock"
	keepSnaps  = 2
)

// Open opens or makes the state in Config.Dir, listens, and starts the peer. A peer without state waits
// to be bootstrapped or added. On an error nothing is left running, listening or locked.
func Open(cfg Config) (*Node, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := cfg.faultpoints(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, began: time.Now(), stop: make(chan struct{}), changing: make(chan struct{}, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.log = cfg.Logger.With("component", "raftfsm", "peer", cfg.Name)
	n.cfg.Logger = n.log
	if err := n.open(); err != nil {
		if n.streams != nil {
			n.streams.close()
		}
		if n.trans != nil {
			n.trans.Close()
		}
		n.cancel()
		n.closeFiles()
		return nil, fmt.Errorf("raftfsm: %w", err)
	}
	n.start()
	n.log.Info("peer started", "id", n.id.String(), "listen", n.streams.ln.Addr().String(), "advertise", cfg.AdvertisePeer, "lastIndex", n.raft.LastIndex())
	return n, nil
}

func (n *Node) open() error {
	cfg := &n.cfg
	if err := n.lock(); err != nil {
		return err
	}
	id, err := readIdentity(cfg.Dir)
	if err != nil {
		return err
	}
	switch {
	case id.ID == 0 && cfg.ID == 0:
		id.ID = PeerID(randomID())
	case id.ID == 0:
		id.ID = cfg.ID
	case cfg.ID != 0 && cfg.ID != id.ID:
		return fmt.Errorf("directory %s belongs to peer %v, not %v: use the directory and the certificate of one peer", cfg.Dir, id.ID, cfg.ID)
	}
	id = id.nextBoot(cfg.faults.clock())
	if err := writeIdentity(cfg.Dir, id); err != nil {
		return diskHint(err)
	}
	n.id, n.boot = id.ID, id.Boot
	n.fsm = newFSM(cfg.Store, n.id, n.boot)

	// The port comes before the log: a second daemon must not get to touch the files.
	if err := n.listen(); err != nil {
		return err
	}
	n.disk = newDiskWatch(cfg, n.fatal)
	logs, stable, err := n.openFiles()
	if err != nil {
		return diskHint(err)
	}
	if err := n.checkLog(); err != nil {
		return err
	}

	n.lead, n.prop, n.leases = newLeadTracker(n), newProposer(n), newLessor(n)
	n.reads = &reader{n: n, wake: make(chan struct{}, 1)}
	n.confirms = &confirmer{n: n}
	n.nudge = &nudger{n: n, busy: map[PeerID]bool{}}
	n.rpc = &rpcPeers{dial: n.dialRPC}
	n.metrics = newMetrics()
	n.wire()
	if err := n.startRaft(logs, stable); err != nil {
		return err
	}
	if err := n.metrics.register(n, cfg.Registerer); err != nil {
		close(n.stop)
		n.raft.Shutdown().Error()
		return err
	}
	n.streams.begin()
	return nil
}

func (n *Node) lock() error {
	dir := n.cfg.Dir
	if err := os.MkdirAll(filepath.Join(dir, walDir), 0o700); err != nil {
		return diskHint(fmt.Errorf("make the raft directory: %w", err))
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return diskHint(fmt.Errorf("lock the raft directory: %w", err))
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return fmt.Errorf("raft directory %s is in use by another process (%v): stop it first (`systemctl status controld`)", dir, err)
	}
	n.closers = append(n.closers, f.Close)
	return nil
}

// diskHint adds the next step to errors that people meet.
func diskHint(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: free some space and start again", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: the directory must belong to the user that runs this program (chown -R it)", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: the file system is mounted read-only; check the disk and the kernel log", err)
	}
	return err
}

func (n *Node) listen() error {
	ln, err := net.Listen("tcp", n.cfg.ListenPeer)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			_, port, _ := net.SplitHostPort(n.cfg.ListenPeer)
			return fmt.Errorf("listen for peers: %w: another program has the port; see which with `ss -ltnp sport = :%s`, and stop it", err, port)
		}
		return fmt.Errorf("listen for peers on %s: %w", n.cfg.ListenPeer, err)
	}
	n.streams = &streams{
		self: n.id, tls: n.cfg.TLS, faults: n.cfg.faults, log: n.log, ln: ln, advertise: n.cfg.AdvertisePeer,
		cluster: n.fsm.clusterID, admit: n.admit, removed: n.wasRemoved, rpc: n.serve,
	}
	n.streams.prepare()
	return nil
}

func (n *Node) openFiles() (raft.LogStore, raft.StableStore, error) {
	dir := n.cfg.Dir
	path := filepath.Join(dir, stableFile)
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: time.Second}})
	if err != nil {
		return nil, nil, fmt.Errorf("open %s, which holds the raft term and vote: %w", path, err)
	}
	n.closers = append(n.closers, bolt.Close)
	var files types.VFS = walfs.New()
	if n.cfg.faults.files != nil {
		files = n.cfg.faults.files(files)
	}
	disk, err := openWAL(filepath.Join(dir, walDir), files, segmentBytes, newHLog(n.log, "raft-wal"), n.log)
	if err != nil {
		return nil, nil, err
	}
	n.closers = append(n.closers, disk.close)
	n.snaps, err = raft.NewFileSnapshotStoreWithLogger(dir, keepSnaps, newHLog(n.log, "raft-snapshot"))
	if err != nil {
		return nil, nil, fmt.Errorf("open the snapshots in %s: %w", dir, err)
	}
	n.dropUnfinished()
	var logs raft.LogStore = disk
	if n.cfg.faults.logs != nil {
		logs = n.cfg.faults.logs(logs)
	}
	n.logs = newLogStore(logs, n.disk, n.fatal)
	var stable raft.StableStore = bolt
	if n.cfg.faults.stable != nil {
		stable = n.cfg.faults.stable(stable)
	}
	return n.logs, newVoteStore(watchedStable{stable, n.disk}, n.fatal), nil
}

// watchedStable tells the disk watch of writes to the stable store.
type watchedStable struct {
	raft.StableStore
	disk *diskWatch
}

func (w watchedStable) Set(k, v []byte) error {
	defer w.disk.begin("write the raft term or vote")()
	return w.StableStore.Set(k, v)
}

func (w watchedStable) SetUint64(k []byte, v uint64) error {
	defer w.disk.begin("write the raft term or vote")()
	return w.StableStore.SetUint64(k, v)
}

// dropUnfinished removes what a snapshot that was cut off left behind.
func (n *Node) dropUnfinished() {
	left, _ := filepath.Glob(filepath.Join(n.cfg.Dir, "snapshots", "*.tmp"))
	for _, p := range left {
		if err := os.RemoveAll(p); err != nil {
			n.log.Warn("cannot remove an unfinished snapshot", "path", p, "error", err)
		}
	}
}

// checkLog reads the log that raft will read, so that damage is an error with a name and not a panic, and
// mends the one state that raft and its log disagree about.
func (n *Node) checkLog() error {
	snaps, err := n.snaps.List()
	if err != nil {
		return fmt.Errorf("list the snapshots in %s: %w", n.cfg.Dir, err)
	}
	var snap uint64
	if len(snaps) > 0 {
		snap = snaps[0].Index
	}
	first, err := n.logs.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	last, err := n.logs.LastIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	if last == 0 {
		return nil
	}
	if snap > last {
		// The process ended between installing a snapshot and emptying the log. raft would now
		// append behind a hole, which the log refuses for good.
		n.log.Info("the log ends before the snapshot: emptying it", "last", last, "snapshot", snap)
		return n.logs.DeleteRange(first, last)
	}
	if first > snap+1 {
		return fmt.Errorf("the raft log in %s starts at %d, but the newest readable snapshot ends at %d: entries are missing; remove this peer from the cluster, empty its directory and join it again", n.cfg.Dir, first, snap)
	}
	for i := max(first, snap+1); i <= last; i++ {
		var e raft.Log
		err := n.logs.GetLog(i, &e)
		if err == nil && e.Type == raft.LogCommand {
			_, err = openEntry(e.Data)
		}
		if err == nil && e.Index != i {
			err = fmt.Errorf("it says that it is entry %d", e.Index)
		}
		if err != nil {
			return fmt.Errorf("entry %d of the raft log is damaged, in %s: %w; the other peers have the data: remove this peer from the cluster, empty its directory and join it again", i, n.segmentOf(i), err)
		}
	}
	return nil
}

// segmentOf names the file that holds an entry: segments are named after their first index.
func (n *Node) segmentOf(index uint64) string {
	dir := filepath.Join(n.cfg.Dir, walDir)
	files, _ := filepath.Glob(filepath.Join(dir, "*.wal"))
	best := dir
	for _, f := range files { // sorted by name, thus by first index
		var base, id uint64
		if _, err := fmt.Sscanf(filepath.Base(f), "%020d-%016x.wal", &base, &id); err == nil && base <= index {
			best = f
		}
	}
	return best
}

func (n *Node) startRaft(logs raft.LogStore, stable raft.StableStore) error {
	cfg := &n.cfg
	layer := &raftLayer{streams: n.streams, peerAt: n.peerAt}
	nt := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 4, MaxRPCsInFlight: raft.DefaultMaxRPCsInFlight,
		Timeout: max(rpcTimeout, 2*cfg.ElectionTimeout), Logger: newHLog(n.log, "raft-net"),
	})
	n.trans = newTransport(nt, n.disk)
	n.trans.role = func() (uint64, raft.RaftState) { return 0, raft.Shutdown } // until raft exists
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(n.id.String())
	rc.HeartbeatTimeout, rc.ElectionTimeout, rc.LeaderLeaseTimeout = cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout
	rc.CommitTimeout = 50 * time.Millisecond // nudge.go is faster, for all but raft's own entries
	if cfg.faults.commitTimeout != 0 {
		rc.CommitTimeout = cfg.faults.commitTimeout
	}
	rc.MaxAppendEntries = 64
	rc.BatchApplyCh = true
	rc.ShutdownOnRemove = false
	rc.NoLegacyTelemetry = true
	rc.Logger = newHLog(n.log, "raft")
	// Snapshots are taken by n.snapshots, which counts bytes as well and also serves short runs.
	rc.SnapshotInterval = 24 * time.Hour
	rc.SnapshotThreshold = 1 << 62
	rc.TrailingLogs = 1024
	ready := make(chan struct{})
	n.trans.role = func() (uint64, raft.RaftState) {
		select {
		case <-ready:
			return n.raft.CurrentTerm(), n.raft.State()
		default:
			return 0, raft.Shutdown
		}
	}
	n.trans.commitCap = n.logs.commitCap
	n.logs.leading = func() bool {
		select {
		case <-ready:
			return n.raft.State() == raft.Leader
		default:
			return false
		}
	}
	// An append that fails makes raft step down, and this is one.
	n.logs.onFailed = func() { n.raft.Barrier(time.Second) }
	r, err := raft.NewRaft(rc, n.fsm, logs, stable, n.snaps, n.trans)
	if err != nil {
		return fmt.Errorf("start raft on %s: %w", cfg.Dir, err)
	}
	n.raft = r
	close(ready)
	close(n.fsm.ready)
	return nil
}
