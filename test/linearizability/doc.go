// Package linearizability runs three real servers (test/etcdserver: raftfsm, store and
// etcdapi in a process of their own, with real files and fsync) under the traffic of
// etcd's robustness tests, breaks them meanwhile, and has etcd's own validators judge
// what the clients saw.
//
// # A history
//
// One history is one new cluster. Clients of etcd's robustness package put, get, list,
// delete, compare, grant and revoke leases, compact and watch, and record each call and
// answer with its time. Faults, drawn from a seed, hit the members meanwhile
// (faults_test.go). At the end everything is healed, every member must reach the same
// revision and the same hash, and these are checked:
//
//   - the operations are linearizable (porcupine over etcd's model);
//   - each watch is ordered, unique, atomic, reliable, resumable, bookmarkable, filtered,
//     and tells the right previous values;
//   - each read at an old revision saw the state of that revision;
//   - the members' raft logs hold the same entries;
//   - no lease ended that no client revoked (their time is far longer than a history).
//
// Watches and old revisions are judged against the requests in the members' raft logs
// (raftfsm.ReadLog), which the servers keep from truncation in an archive. Traffic is
// not seeded: the same seed gives the same faults, not the same interleaving.
//
// # Running it
//
// `go test` runs a few histories. `make linearizability TIME=30m` goes on for that
// long, prints histories, operations, faults by kind and violations, and fails on any
// violation. What a violation was found in is kept: the seed, each client's operations and
// watches, the servers' files and logs, and porcupine's picture of it.
//
// That the judge can judge is a test too: a server that answers reads without asking
// the others, and one that loses a watch event, are found (judge_test.go).
package linearizability
