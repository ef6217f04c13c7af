// Package etcdapi serves etcd's v3 gRPC API, and the few HTTP paths that
// operators and load balancers ask, over a store and the Proposer that orders
// its writes.
//
// It is a front door and nothing more. Requests are checked here, before they
// are proposed, with etcd's limits, codes and messages; what they mean is
// store's business, their order and durability the Proposer's, time the
// Leaser's. Writes are proposed; linearizable reads wait for a read index and
// then read the local store; serializable reads read it at once.
//
// Differences from an etcd server:
//   - Whoever may do something on a range that holds no key, as its end is not
//     behind its begin, is who may do it on the range's first key.
//   - A permission that is granted again for the same range replaces the first
//     one; of several that begin with one key etcd may keep both.
//   - A jwt option that is not known is refused and not overlooked.
//   - The calls that change membership work only where Config.Members is given.
//   - Every downgrade is refused.
//   - Hash and HashKV compare members of this cluster with each other, not
//     with an etcd server.
//   - Defragment has nothing to do, and succeeds.
//   - A transaction that deletes everything from a key on, and puts one of
//     those keys, is refused as for any other range; etcd overlooks it.
//   - An answer to a progress request comes at once: the watches of the stream
//     are first brought up to date. A watch that a compaction has ended does not
//     hold it up, and its ID is free.
//   - What is refused because the store is behind the log has the code
//     ResourceExhausted, as rpctypes says; from etcd it comes as Unknown.
//   - An answer that no message can carry is refused before it is encoded, and
//     a watch ends over a revision of such a size unless it takes fragments.
package etcdapi
