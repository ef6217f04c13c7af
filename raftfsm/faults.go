package raftfsm

import (
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// faults are the seams through which tests break the network, the disk and the clock: this
// package's own set them, and a program built with the tag faultpoints takes them from a
// file (faultpoints.go). All are nil otherwise.
type faults struct {
	// conn wraps every established peer connection, in both directions.
	conn func(c net.Conn, peer PeerID) net.Conn
	// dial refuses or delays a connection to peer.
	dial func(peer PeerID) error
	// logs wraps the log on disk.
	logs func(raft.LogStore) raft.LogStore
	// stable wraps the stable store on disk.
	stable func(raft.StableStore) raft.StableStore
	// files wraps the file system.
	files func(fileSystem) fileSystem
	// segment replaces segmentBytes.
	segment int
	// commitTimeout replaces how long raft waits before it tells followers of a commit.
	commitTimeout time.Duration
	// free replaces the measurement of free disk space, in bytes.
	free func() (int64, error)
	// now replaces the clock by which leases run and runs of a peer are numbered.
	now func() time.Time
	// staleReads tells whether reads are answered from the local state without asking anyone:
	// a bug, for tests of tests.
	staleReads func() bool
}

func (f *faults) clock() time.Time {
	if f.now != nil {
		return f.now()
	}
	return time.Now()
}
