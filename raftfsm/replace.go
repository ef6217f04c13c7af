package raftfsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/tripod-cluster/tripod/store"
)

// A cluster is replaced by another one when its state is taken from a snapshot, or
// from the peer that is left of it. One peer begins the new cluster, which has an ID
// of its own and remembers which clusters it replaced. Its leader seeks the peers
// that it expects: those of the earlier cluster. One that still belongs to that
// cluster is told that it was replaced, moves its state aside and starts anew; one
// that has no state is added, and promoted when it has caught up. So nobody else
// needs to do anything, and no two clusters go on side by side for longer than the
// peers cannot reach each other.
//
// On disk the change is one marker file. Before it is written the new state is made
// beside the old one; after it was written, whoever opens the directory next finishes.

const (
	replacementFile = "replace.json"
	nextDir         = "next"
	// asidePrefix begins the name of the directory with the state that was replaced.
	// The last one is kept, for an operator to delete.
	asidePrefix = "replaced-"
)

// stateFiles is what belongs to one cluster, in the raft directory.
var stateFiles = []string{walDir, voteFile, voteFile + secondCopy, snapshotDir}

// replacement is the marker file.
type replacement struct {
	Aside string `json:"aside"` // directory that the old state goes to
	New   bool   `json:"new"`   // nextDir holds a new state; else there is none
}

// NewCluster is what a cluster begins with.
type NewCluster struct {
	// Self becomes its only member, a voter.
	Self Member
	// State is what it holds; see store.Store.Rebase.
	State *store.Snapshot
	// Replaced are the IDs of the clusters whose place it takes, the last first (at
	// most 64 are remembered), Removed the IDs of peers that must never come back.
	Replaced []uint64
	Removed  []PeerID
	// Expected are the peers that become members when they are met.
	Expected []Member
}

// BeginCluster makes the raft directory of a peer that does not run the beginning of
// a new cluster, and returns its ID. The state that was there is kept in a directory
// whose name begins with "replaced-", beside the new one; that of an earlier
// replacement is deleted. When it fails or is interrupted, the directory is as it
// was, or as it is to be.
func BeginCluster(dir string, c NewCluster, log *slog.Logger) (uint64, error) {
	cluster, err := beginCluster(dir, c, log)
	if err != nil {
		return 0, diskHint(fmt.Errorf("begin a new cluster in %s: %w", dir, err))
	}
	return cluster, nil
}

func beginCluster(dir string, c NewCluster, log *slog.Logger) (uint64, error) {
	if c.Self.ID == 0 || c.Self.Name == "" || c.Self.PeerAddr == "" {
		return 0, errors.New("the first member needs an ID, a name and a peer address")
	}
	if slices.Contains(c.Removed, c.Self.ID) {
		return 0, fmt.Errorf("peer %v: %w", c.Self.ID, ErrRemoved)
	}
	id, err := readIdentity(dir)
	if err != nil {
		return 0, err
	}
	if id.ID != 0 && id.ID != c.Self.ID {
		return 0, fmt.Errorf("it belongs to peer %v, not %v", id.ID, c.Self.ID)
	}
	n, err := offlineNode(dir, log)
	if err != nil {
		return 0, err
	}
	defer n.closeFiles()
	files := newOSFiles()
	if err := finishReplace(files, dir); err != nil {
		return 0, err
	}
	c.Replaced = c.Replaced[:min(len(c.Replaced), maxReplaced)]
	id.ID = c.Self.ID
	if err := writeIdentity(files, dir, id); err != nil {
		return 0, err
	}
	cluster := randomID()
	if err := writeNext(files, filepath.Join(dir, nextDir), cluster, c, n.log); err != nil {
		return 0, err
	}
	old := uint64(0)
	if len(c.Replaced) > 0 {
		old = c.Replaced[0]
	}
	if err := markReplaced(files, dir, old, true); err != nil {
		return 0, err
	}
	return cluster, finishReplace(files, dir)
}

// writeNext makes the state of a new cluster in an empty directory.
func writeNext(files fileSystem, dir string, cluster uint64, c NewCluster, log *slog.Logger) error {
	if err := files.RemoveAll(dir); err != nil {
		return err
	}
	for _, d := range []string{dir, filepath.Join(dir, walDir)} {
		if err := makeDir(files, d); err != nil {
			return err
		}
	}
	const index, term = 1, 1
	stable, err := openStable(files, dir, log)
	if err == nil {
		err = stable.SetUint64([]byte(keyCurrentTerm), term)
	}
	if err != nil {
		return fmt.Errorf("write the raft term: %w", err)
	}
	snaps, err := openSnapshots(files, dir, log)
	if err != nil {
		return fmt.Errorf("make the snapshots: %w", err)
	}
	self := c.Self
	self.Voter = false // the raft configuration says
	header := snapshotHeader{Cluster: cluster, Index: index, Term: term, Members: []Member{self}, Removed: c.Removed,
		Sessions: sessions{}.encode(nil), Replaced: c.Replaced, Expected: c.Expected}
	b, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("encode the snapshot header: %w", err)
	}
	conf := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(self.ID.String()), Address: raft.ServerAddress(self.PeerAddr)}}}
	sink, err := snaps.Create(raft.SnapshotVersionMax, index, term, conf, index, nil)
	if err != nil {
		return fmt.Errorf("make a snapshot: %w", err)
	}
	if err := (&snapshot{header: b, store: c.State}).Persist(sink); err != nil {
		return err
	}
	return files.SyncDir(dir)
}

// markReplaced writes the marker: from here on the old state is not used again.
func markReplaced(files fileSystem, dir string, old uint64, fresh bool) error {
	aside := asidePrefix + "unknown"
	if old != 0 {
		aside = fmt.Sprintf("%s%016x", asidePrefix, old)
	}
	// A state that was put aside under this name is not the one that goes there now.
	if err := files.RemoveAll(filepath.Join(dir, aside)); err != nil {
		return err
	}
	f := sealedFile{files: files, path: filepath.Join(dir, replacementFile)}
	if err := f.store(replacement{Aside: aside, New: fresh}); err != nil {
		return fmt.Errorf("note that the state is replaced: %w", err)
	}
	return nil
}

// finishReplace does what the marker says, if there is one. The caller holds the
// directory's lock. It may be interrupted anywhere and run again.
func finishReplace(files fileSystem, dir string) error {
	path := filepath.Join(dir, replacementFile)
	var r replacement
	_, _, err := readSealed(path, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (!strings.HasPrefix(r.Aside, asidePrefix) || strings.ContainsRune(r.Aside, filepath.Separator)) {
		err = fmt.Errorf("%s is %w", path, errDamaged)
	}
	if err != nil {
		return fmt.Errorf("a change of this peer's cluster was not finished: %w; run the restore again", err)
	}
	earlier, _ := filepath.Glob(filepath.Join(dir, asidePrefix+"*"))
	for _, p := range earlier {
		if filepath.Base(p) != r.Aside {
			if err := files.RemoveAll(p); err != nil {
				return fmt.Errorf("remove an earlier state: %w", err)
			}
		}
	}
	aside, next := filepath.Join(dir, r.Aside), filepath.Join(dir, nextDir)
	if err := makeDir(files, aside); err != nil {
		return err
	}
	for _, name := range stateFiles {
		// A new file that is gone was moved in by the attempt before.
		if r.New && !exists(filepath.Join(next, name)) {
			continue
		}
		if exists(filepath.Join(aside, name)) {
			// What is here instead is the empty directory of whoever has opened this one.
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("put the earlier state aside: %w", err)
			}
		} else if err := files.Rename(filepath.Join(dir, name), filepath.Join(aside, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("put the earlier state aside: %w", err)
		}
		if r.New {
			if err := files.Rename(filepath.Join(next, name), filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("move the new state in: %w", err)
			}
		}
	}
	if err := makeDir(files, filepath.Join(dir, walDir)); err != nil {
		return err
	}
	if err := errors.Join(files.SyncDir(aside), files.SyncDir(dir)); err != nil {
		return err
	}
	if err := files.RemoveAll(next); err != nil {
		return err
	}
	for _, p := range []string{path, path + secondCopy} {
		if err := files.RemoveAll(p); err != nil {
			return err
		}
	}
	return files.SyncDir(dir)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
