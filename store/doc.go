// Package store is the replicated state machine of Tripod: keys with every
// retained version (MVCC), transactions, leases, watches and compaction, with
// the semantics of etcd 3.7.
//
// # Pure
//
// The package owns meaning and nothing else. Given the same requests in the
// same order, every peer holds the same state, byte for byte: Apply reads no
// clock, no random source, no environment, starts no goroutine, does no I/O,
// and never lets the order of a map reach its output. A lease has a TTL here
// but no timer; the proposer chooses lease IDs; the revision comes from the
// state, not from the raft index. A test of this package enforces the rules
// that a machine can check.
//
// # Users
//
// Users, roles and permissions are part of the state. Whether a request is
// allowed is decided when it is applied, by the name and the auth revision in
// its header, so that all peers decide alike; a request without a header is
// this program's own and is asked nothing. Passwords come hashed. Simple tokens
// are numbered here, and remembered by those who follow them (FollowTokens).
//
// # Duties of the caller
//
//   - One goroutine at a time calls Apply and Restore. Everything else may be
//     called by anyone at any time.
//   - Byte slices of an applied request belong to the store from then on.
//   - Everything the store hands out (key-values, events, responses of reads)
//     is shared with other readers: read it, encode it, never change it.
//   - Request limits (operations of a transaction, size, keys given twice) are
//     checked where requests enter, before they are proposed.
//
// # Representation
//
// Keys are a copy-on-write B-tree from key to its versions, newest first at
// hand, and the history is a flat list of the same versions in the order in
// which they were made, which is what a watch reads. A value is stored once
// and shared by all of them. Readers work on an immutable fork of the state,
// made in O(1) by the first reader after a change and shared by those that
// follow; they never see half a transaction and hold up nobody.
package store
