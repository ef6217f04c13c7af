package raftfsm

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// snapState is what the snapshot loop knows of the last snapshot.
type snapState struct {
	index uint64
	size  int64
}

// snapshots takes a snapshot when enough log was written since the last one. hashicorp/raft's own loop
// counts entries only, and not before its interval has passed, so that a peer that is restarted often
// would never truncate its log. Here the log found at the start counts as well.
func (n *Node) snapshots() {
	if snaps, err := n.snaps.List(); err == nil && len(snaps) > 0 {
		n.snapped = snapState{snaps[0].Index, snaps[0].Size}
	}
	n.logs.written.Store(n.logBytesSince(n.snapped.index))
	wait := min(time.Second, n.cfg.SnapshotInterval)
	for {
		select {
		case <-n.stop:
			return
		case <-time.After(wait):
		}
		wait = n.cfg.SnapshotInterval
		applied, _ := n.fsm.applied()
		entries := applied - min(applied, n.snapped.index)
		bytes := n.logs.written.Load()
		if entries == 0 || (entries < n.cfg.SnapshotEntries && bytes < max(n.cfg.SnapshotBytes, n.snapped.size)) {
			continue
		}
		if err := n.snapshotNow(entries, bytes); err != nil {
			if n.stopping() {
				return
			}
			n.log.Error("a snapshot failed; the log grows until one succeeds", "error", err)
			wait = 4 * n.cfg.SnapshotInterval
		}
	}
}

// logBytesSince is about how many bytes of entries follow index in the log. It reads few of them: all are
// about to be read to be applied.
func (n *Node) logBytesSince(index uint64) int64 {
	const samples = 64
	last, err := n.logs.LastIndex()
	if err != nil || last <= index {
		return 0
	}
	first, err := n.logs.FirstIndex()
	if err != nil {
		return 0
	}
	first = max(first, index+1)
	step := (last-first)/samples + 1
	var bytes int64
	for i := first; i <= last; i += step {
		var e raft.Log
		if n.stopping() || n.logs.GetLog(i, &e) != nil {
			break
		}
		bytes += int64(len(e.Data)) * int64(min(step, last-i+1))
	}
	return bytes
}

// snapshotNow takes a snapshot and truncates the log to about TrailingBytes before it.
func (n *Node) snapshotNow(entries uint64, bytes int64) error {
	rc := n.raft.ReloadableConfig()
	each := max(bytes/int64(max(entries, 1)), 64)
	rc.TrailingLogs = uint64(min(max(n.cfg.TrailingBytes/each, 16), 10240))
	if err := n.raft.ReloadConfig(rc); err != nil {
		return err
	}
	began := time.Now()
	before := n.logs.written.Load()
	err := n.await(n.raft.Snapshot())
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return err
	}
	n.metrics.snapshot.Observe(time.Since(began).Seconds())
	n.logs.written.Add(-before)
	snaps, err := n.snaps.List()
	if err != nil || len(snaps) == 0 {
		return err
	}
	n.snapped = snapState{snaps[0].Index, snaps[0].Size}
	n.log.Info("snapshot taken", "index", n.snapped.index, "bytes", n.snapped.size, "took", time.Since(began), "entries", entries)
	return nil
}
