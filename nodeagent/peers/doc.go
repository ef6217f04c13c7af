// Package peers keeps a node connected to a cluster whose API is served by
// several equal peers.
//
// A Set is the list of known peers. It dials the one it used last and moves on
// when that one is gone: connection refused moves at once, a power cut or pulled
// cable is noticed within about five seconds by pings that no kernel acknowledges,
// a process that hangs within PingAfter + PingTimeout by pings without an answer,
// and a peer that answers but cannot serve (it lost its quorum) is noticed by
// the errors it gives, checked against /readyz. When the Set leaves a peer it
// closes every connection to it, so that watches do not stay behind.
//
// The list is refreshed from the cluster (the addresses of Service
// default/kubernetes) and kept in a file, so a node that boots while the peer it
// joined through is gone still finds the others. Addresses the operator gave are
// seeds: they are tried last and never forgotten.
package peers
