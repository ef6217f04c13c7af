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
)

const (
	walDir   = "wal"
	lockFile = "lock"
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
	n := &Node{cfg: cfg, began: time.Now(), stop: make(chan struct{}), changing: make(chan struct{}, 1), seek: make(chan struct{}, 1)}
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
	files := newOSFiles()
	if cfg.faults.files != nil {
		files = cfg.faults.files(files)
	}
	if err := n.lock(files); err != nil {
		return err
	}
	if err := finishReplace(files, cfg.Dir); err != nil {
		return diskHint(err)
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
	if err := writeIdentity(files, cfg.Dir, id); err != nil {
		return diskHint(err)
	}
	n.id, n.boot, n.left = id.ID, id.Boot, id.Left
	n.fsm = newFSM(cfg.Store, n.id, n.boot)

	n.metrics = newMetrics()
	// The port comes before the log: a second daemon must not get to touch the files.
	if err := n.listen(); err != nil {
		return err
	}
	n.disk = newDiskWatch(cfg, n.fatal)
	n.lead, n.prop, n.leases = newLeadTracker(n), newProposer(n), newLessor(n)
	n.reads = &reader{n: n, wake: make(chan struct{}, 1)}
	n.confirms = &confirmer{n: n}
	n.nudge = &nudger{n: n, busy: map[PeerID]bool{}}
	n.rpc = &rpcPeers{dial: n.dialRPC}
	n.wire()
	stable, err := n.openFiles(files)
	if err != nil {
		return diskHint(err)
	}
	if err := n.startRaft(n.logs, stable); err != nil {
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

func (n *Node) lock(files fileSystem) error {
	dir := n.cfg.Dir
	for _, d := range []string{dir, filepath.Join(dir, walDir)} {
		if err := makeDir(files, d); err != nil {
			return diskHint(fmt.Errorf("make the raft directory: %w", err))
		}
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
		cluster: n.fsm.clusterID, left: n.left, admit: n.admit, removed: n.wasRemoved, replaced: n.wasReplaced, rpc: n.serve, roster: n.serveRoster, metrics: n.metrics,
	}
	n.streams.prepare()
	return nil
}

// openFiles opens what is on disk. The log is checked while the newest snapshot is read.
func (n *Node) openFiles(files fileSystem) (raft.StableStore, error) {
	dir := n.cfg.Dir
	if err := migrate(files, dir, n.log); err != nil {
		return nil, err
	}
	bolt, err := openBoltStable(files, dir, n.log)
	if err != nil {
		return nil, err
	}
	n.closers = append(n.closers, bolt.close)
	var stable raft.StableStore = bolt
	if n.snaps, err = openSnapshots(files, dir, n.log); err != nil {
		return nil, fmt.Errorf("open the snapshots in %s: %w", dir, err)
	}
	began := time.Now()
	type opened struct {
		wal *walLog
		err error
	}
	ch := make(chan opened, 1)
	size := segmentBytes
	if n.cfg.faults.segment != 0 {
		size = n.cfg.faults.segment
	}
	go func() {
		w, err := openWAL(filepath.Join(dir, walDir), files, size, newHLog(n.log, "raft-wal"), n.log)
		ch <- opened{w, err}
	}()
	snap, err := n.loadSnapshot()
	read := time.Since(began)
	disk := <-ch
	if disk.err != nil {
		return nil, disk.err
	}
	n.closers = append(n.closers, disk.wal.close)
	if err != nil {
		return nil, err
	}
	var logs raft.LogStore = disk.wal
	if n.cfg.faults.logs != nil {
		logs = n.cfg.faults.logs(logs)
	}
	n.logs = newLogStore(logs, n.disk, n.fatal)
	n.logs.appended = func(took time.Duration) { n.metrics.fsync.Observe(took.Seconds()) }
	if err := n.checkLog(snap); err != nil {
		return nil, err
	}
	n.log.Info("state on disk was read", "snapshot", snap, "snapshotTook", read, "took", time.Since(began))
	if n.cfg.faults.stable != nil {
		stable = n.cfg.faults.stable(stable)
	}
	return newVoteStore(watchedStable{stable, n.disk}, n.fatal), nil
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

// loadSnapshot makes the newest snapshot that is whole the state, and returns its index; 0 without one. raft
// would do that by itself, but only after the log was read, and with an older one in silence.
func (n *Node) loadSnapshot() (index uint64, err error) {
	snaps, err := n.snaps.List()
	if err != nil {
		return 0, fmt.Errorf("list the snapshots in %s: %w", n.cfg.Dir, err)
	}
	for _, s := range snaps {
		_, f, err := n.snaps.open(s.ID)
		if err != nil {
			return 0, fmt.Errorf("open a snapshot: %w", err)
		}
		err = n.fsm.Restore(f)
		if at, _ := n.fsm.applied(); err == nil && at != s.Index {
			return 0, fmt.Errorf("snapshot %s says in %s that it ends at %d, and in %s at %d: remove this peer from the cluster, empty its directory and join it again", s.ID, snapMetaFile, s.Index, snapStateFile, at)
		}
		if err == nil {
			return s.Index, nil
		}
		n.snaps.damaged(s.ID, err)
	}
	return 0, nil
}

// checkLog checks that log and snapshot fit, and mends the one state that raft and its log disagree about. snap is
// the index of the snapshot that was loaded.
func (n *Node) checkLog(snap uint64) error {
	first, err := n.logs.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	last, err := n.logs.LastIndex()
	if err != nil {
		return fmt.Errorf("read the raft log: %w", err)
	}
	if to, bad := n.snaps.damagedAfter(snap); to != 0 && (last < to || first > snap+1) {
		return fmt.Errorf("a snapshot is damaged, and the log in %s does not reach back to the one before: %w; the other peers have the data: remove this peer from the cluster, empty its directory and join it again", n.cfg.Dir, bad)
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
		return fmt.Errorf("the raft log in %s starts at %d, but the newest snapshot ends at %d: entries are missing; remove this peer from the cluster, empty its directory and join it again", n.cfg.Dir, first, snap)
	}
	return nil
}

func (n *Node) startRaft(logs raft.LogStore, stable raft.StableStore) error {
	cfg := &n.cfg
	layer := &raftLayer{streams: n.streams, peerAt: n.peerAt}
	nt := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 4, MaxRPCsInFlight: raft.DefaultMaxRPCsInFlight,
		Timeout: max(rpcTimeout, 2*cfg.ElectionTimeout), Logger: newHLog(n.log, "raft-net"),
	})
	n.trans = newTransport(nt, n.disk)
	n.trans.roundTrip = n.metrics.roundTrip
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
	rc.NoSnapshotRestoreOnStart = true // loadSnapshot did
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
