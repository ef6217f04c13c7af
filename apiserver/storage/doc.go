// Package storage is the Kubernetes API's storage layer over the store of this
// process.
//
// Upstream's etcd3 store keeps its meaning (keys, transformers, resource
// versions, list continuation, watch events) and its cacher stays on top; what
// is replaced is everything below: the etcd client it is given has no
// connection. A read is a read index and a walk of the local store, a write is
// one proposal, a watch is a goroutine that pulls from the store's history. No
// request is marshalled and no gRPC is on the path.
//
// A Backend is made once per process. Client gives an etcd client bound to it,
// one per resource, because progress requests are meant for the watches of one
// client. Wrap makes a RESTOptionsGetter build its storage on the Backend.
//
// # Freshness
//
// A read without a revision and the current revision are linearizable: they
// wait for the proposer's read index. A read at a revision that the local store
// already holds is answered from it at once, since history does not change.
//
// A list from the watch cache first asks for the current revision, then waits
// until the cache has seen it. The cache would poll for progress every 100 ms;
// here the question itself makes the watches of that client report how far they
// are, as soon as they have nothing older left to deliver.
//
// # Errors
//
// The KV, Watch and Lease interfaces give the values that etcd's client gives
// (rpctypes). The five calls that Kubernetes itself makes give, in place of
// "no leader" and "timed out", the API status that tells a client what it may
// do: ServiceUnavailable with a Retry-After when nothing was changed, Timeout
// without one when a write may have been.
package storage
