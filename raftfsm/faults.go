package raftfsm

import (
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// faults are the seams through which this package's tests break the network and the
// disk. All are nil outside tests.
type faults struct {
	// conn wraps every established peer connection, in both directions.
	conn func(c net.Conn, peer PeerID) net.Conn
	// dial refuses or delays a connection to peer.
	dial func(peer PeerID) error
	// logs wraps the log on disk.
	logs func(raft.LogStore) raft.LogStore
	// stable wraps the stable store on disk.
	stable func(raft.StableStore) raft.StableStore
	// commitTimeout replaces how long raft waits before it tells followers of a commit.
	commitTimeout time.Duration
	// free replaces the measurement of free disk space, in bytes.
	free func() (int64, error)
}
