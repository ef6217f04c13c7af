//go:build faultpoints

package raftfsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

// A program built with the tag faultpoints breaks its own disk and clock as the file named by
// the environment variable TRIPOD_FAULTS says, which is read again and again, so that a
// test can break a server that runs. Such a program also keeps what it removes from the front of its log, in the file
// "archive" of the raft directory, one raft.Log as JSON a line. It is for tests
// (test/linearizability): without the tag none of this is compiled.
const faultsEnv = "TRIPOD_FAULTS"

// faultFile is the content of the file; durations are in nanoseconds.
type faultFile struct {
	SyncDelay  time.Duration // before each fsync of the log, and before each write of term or vote
	WriteError string        // EIO or ENOSPC: writes of the log fail so; EIO also its fsync and the stable store
	NoSpace    bool          // the disk is measured as full
	Clock      time.Duration // added to the clock
	StaleReads bool          // reads do not ask the leader: a bug, to see that it is found

	// Read once, at the start: how often it is looked whether a snapshot is due, and how
	// much log stays behind one; 0 is the default.
	SnapshotInterval time.Duration
	TrailingBytes    int64
}

type faultPoints struct {
	mu  sync.Mutex
	now faultFile
}

func (c *Config) faultpoints() error {
	path := os.Getenv(faultsEnv)
	if path == "" {
		return nil
	}
	p := &faultPoints{}
	read := func() error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var f faultFile
		if err := json.Unmarshal(b, &f); err != nil {
			return err
		}
		p.mu.Lock()
		p.now = f
		p.mu.Unlock()
		return nil
	}
	if err := read(); err != nil {
		return fmt.Errorf("raftfsm: read the faults in %s: %w", path, err)
	}
	go func() { // for the life of the process
		for range time.Tick(10 * time.Millisecond) {
			if err := read(); err != nil {
				c.Logger.Error("cannot read the faults", "path", path, "error", err)
			}
		}
	}()
	if f := p.get(); f.SnapshotInterval > 0 {
		c.SnapshotInterval = f.SnapshotInterval
	}
	if f := p.get(); f.TrailingBytes > 0 {
		c.TrailingBytes = f.TrailingBytes
	}
	dir := c.Dir
	c.faults.files = func(f fileSystem) fileSystem { return faultyFiles{f, p} }
	c.faults.stable = func(s raft.StableStore) raft.StableStore { return faultyStable{s, p} }
	c.faults.logs = func(l raft.LogStore) raft.LogStore { return archivedLog{l, filepath.Join(dir, "archive")} }
	c.faults.now = func() time.Time { return time.Now().Add(p.get().Clock) }
	c.faults.staleReads = func() bool { return p.get().StaleReads }
	c.faults.free = func() (int64, error) {
		if p.get().NoSpace {
			return 0, nil
		}
		return freeBytes(dir)
	}
	return nil
}

func (p *faultPoints) get() faultFile {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (f faultFile) writeError() error {
	switch f.WriteError {
	case "":
		return nil
	case "ENOSPC":
		return syscall.ENOSPC
	case "EIO":
		return syscall.EIO
	}
	return errors.New(f.WriteError)
}

// damaged is the error of what only a damaged disk refuses: a full one lets bytes be
// overwritten and flushed.
func (f faultFile) damaged() error {
	if f.WriteError == "ENOSPC" {
		return nil
	}
	return f.writeError()
}

// faultyFiles breaks the segments of the log.
type faultyFiles struct {
	fileSystem
	p *faultPoints
}

func (v faultyFiles) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if filepath.Ext(name) != ".wal" {
		return v.fileSystem.Create(dir, name, size)
	}
	if err := v.p.get().writeError(); err != nil {
		return nil, err
	}
	return v.wrap(v.fileSystem.Create(dir, name, size))
}

func (v faultyFiles) OpenWriter(dir, name string) (types.WritableFile, error) {
	if filepath.Ext(name) != ".wal" {
		return v.fileSystem.OpenWriter(dir, name)
	}
	return v.wrap(v.fileSystem.OpenWriter(dir, name))
}

func (v faultyFiles) wrap(f types.WritableFile, err error) (types.WritableFile, error) {
	if err != nil {
		return nil, err
	}
	return faultyFile{f, v.p}, nil
}

type faultyFile struct {
	types.WritableFile
	p *faultPoints
}

// WriteAt writes the first half of what a disk with an error was given.
func (f faultyFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.p.get().writeError(); err != nil {
		n, _ := f.WritableFile.WriteAt(b[:len(b)/2], at)
		return n, err
	}
	return f.WritableFile.WriteAt(b, at)
}

func (f faultyFile) Sync() error {
	now := f.p.get()
	time.Sleep(now.SyncDelay)
	if err := now.damaged(); err != nil {
		return err
	}
	return f.WritableFile.Sync()
}

type faultyStable struct {
	raft.StableStore
	p *faultPoints
}

func (s faultyStable) fault() error {
	now := s.p.get()
	time.Sleep(now.SyncDelay)
	return now.damaged()
}

func (s faultyStable) Set(k, v []byte) error {
	if err := s.fault(); err != nil {
		return err
	}
	return s.StableStore.Set(k, v)
}

func (s faultyStable) SetUint64(k []byte, v uint64) error {
	if err := s.fault(); err != nil {
		return err
	}
	return s.StableStore.SetUint64(k, v)
}

// archivedLog keeps what is removed from the front of the log, or all of it when the log is
// emptied. It is complete after a kill, not after a power cut.
type archivedLog struct {
	raft.LogStore
	path string
}

func (l archivedLog) DeleteRange(lo, hi uint64) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	if lo <= first {
		if err := l.archive(first, hi); err != nil {
			return fmt.Errorf("archive the raft log: %w", err)
		}
	}
	return l.LogStore.DeleteRange(lo, hi)
}

func (l archivedLog) archive(lo, hi uint64) error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	b := []byte{'\n'} // ends a line that a kill cut off
	for i := lo; i <= hi; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); errors.Is(err, raft.ErrLogNotFound) {
			continue
		} else if err != nil {
			return err
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b = append(append(b, line...), '\n')
	}
	_, err = f.Write(b)
	return err
}
