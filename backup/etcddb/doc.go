// Package etcddb reads and writes etcd's database file: the bbolt file in the
// schema of etcd 3.7, with a SHA-256 of its bytes at its end, that `etcdctl
// snapshot save` makes and `etcdutl snapshot restore` takes. It is the one
// format in which a cluster's state leaves it and comes back, so a snapshot of
// this store can be served by an etcd server, and one of an etcd server by this
// store.
//
// What is in it: every retained version with its revisions, tombstones, the
// compact revision, leases, users and roles. What names the cluster that it was
// taken from (members, alarms, raft index) is written, so that a reader can tell
// where it comes from, and is not taken over by a restore. A bucket of its own,
// "tripod", says the same for readers of this package; etcd ignores it.
//
// # Reading
//
// bbolt maps a file and trusts it: a damaged one ends the program. So files are
// read with a walker of this package (pages.go), which checks each page before it
// follows it and says which byte is wrong. It never reads a page twice, allocates
// no more than the file is long, and needs no write access.
//
// # Writing
//
// Versions come in the order in which the file has them, so that its trees are
// written from the leaves up (tree.go), each page once and one after the other,
// without the transactions of bbolt. The pages are counted before, by lengths alone,
// so that the file is a stream (stream.go) which needs no place to be put together.
// Tests open the files with bbolt and etcd.
package etcddb
