// Package benchstore measures the store beside etcd 3.7: three processes each on loopback, on the same disk, with fsync,
// both clusters up at the same time and driven in turn by the same clients, so that what else the machine does meets
// both. `make bench-store` runs it and writes store.json; one part alone: make bench-store PART=puts. A plain go test runs a
// few hundred operations of each part, to know that they work, and asserts no figure.
//
// Ours is test/etcdserver, which is store, raftfsm and etcdapi with etcd's flags; the peer is etcd's own server at the
// version in go.mod. Both encrypt between peers (etcd with --peer-auto-tls; raftfsm has no other way) and not towards
// clients. Neither has a setting that is not its default, but the quota of a run with a million keys.
//
// A figure is the median of its rounds. Processor time is what the three servers took, user and system, from
// /proc/PID/stat: on a busy machine it says more than throughput, which the clients of the harness share the
// processors with.
//
// For who makes it faster: TRIPOD_BENCH_CLIENTS=64,1000 are the numbers of clients, TRIPOD_BENCH_KEYS=100000
// that of the many keys, TRIPOD_BENCH_PROFILES=DIR takes
// processor profiles of the servers, TRIPOD_BENCH_PEER=PROGRAM puts another program (an earlier build of ours) in etcd's
// place.
package benchstore
