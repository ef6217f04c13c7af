// Package nodeipam gives every node a block of the pods' network: its podCIDR.
//
// Reads and writes nodes.
//
// Invariants: no block is given to two nodes. The set of blocks in use is filled
// from a consistent read of the API server, not from the cache, before the first
// one is given, and a block stays reserved from before it is written until its
// node is gone. A block that a node has is never changed, whoever gave it.
package nodeipam
