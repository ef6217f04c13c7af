// Package raftfsm gives the store its order and its durability: it replicates
// the store's requests among the peers with hashicorp/raft, on real disks and
// over mutual TLS, and applies them to the local store on every peer.
//
// # A proposal
//
// Propose wraps a request in a record that carries the proposer's identity (peer,
// boot, sequence number). Records that wait at the same time travel together: at the
// leader, those of all peers are coalesced into raft entries of at most 1 MiB, a few of
// which are in flight at once; no lock is held across the round trip. A follower forwards its records over the same port as
// raft. The proposer's own apply of its record answers the caller, so that whoever
// wrote reads its own write locally, on a follower too.
//
// A record whose fate is not known (the leader died, leadership was lost, a
// connection broke) is sent again until the caller's context ends. Every peer
// remembers, as part of the replicated state, which sequence numbers of which boot
// were applied, so a record is applied at most once however often it was sent.
// Only when the context ends with the fate still open is the answer
// store.ErrUnknownOutcome.
//
// # A linearizable read
//
// ReadIndex asks a majority for its current term after the read arrived, and then
// waits until the local store has applied what was committed at that moment. It does
// not use raft.VerifyLeader, which a deposed leader with a stalled main loop can pass.
// One round serves all reads that wait for it.
//
// # What is closed around hashicorp/raft 1.8.0
//
//   - a vote is one write of the stable store, not two (stable.go);
//   - a heartbeat takes the fast path past the main loop only if it can change
//     neither term nor role, and the persisted term never goes back (transport.go, stable.go);
//   - an AppendEntries request is capped in bytes (transport.go);
//   - a leader whose disk hangs stops sending heartbeats, so that others elect, and
//     ends its process when the disk does not come back (disk.go);
//   - a full disk refuses proposals before the log fails, and the log is reopened
//     after a failed append (logstore.go, disk.go);
//   - a peer becomes a voter only when its measured lag is small (members.go);
//   - Restore stages the whole snapshot before it replaces anything (snapshot.go).
//
// # Duties of the caller
//
// Open the Node, then either Bootstrap the first peer or have an existing peer
// AddNonvoter and Promote this one. Never let anything but the Node call Store.Apply
// or Store.Restore. Give an OnFatal that ends the process: after it was called the
// Node no longer promises progress. Close before exit, so that leadership is
// handed over and clients do not wait for an election.
package raftfsm
