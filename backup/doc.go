// Package backup takes snapshots of a store on a schedule, keeps the newest of them
// in a directory, and copies them to other machines: to a bucket of an S3-compatible
// object store, or over SSH to a directory of another host.
//
// Every peer takes its own, from its local state: a copy survives the loss of any
// other host, a restore can begin on whichever host is left, and nothing waits for
// an election. Only the leader copies them elsewhere, so that one copy a period
// leaves the cluster. A snapshot is a view of the copy-on-write state: writes go on
// beside it.
//
// A file is written under another name, flushed, and renamed; it carries the SHA-256
// of its bytes (see etcddb). One that is there is whole. Snapshots never fill the disk
// that the store lives on: older ones make room, or the new one is not taken, which
// counts as a failure.
package backup
