// Package apiserver runs the Kubernetes API in this process: upstream's chain
// (kube-apiserver, apiextensions, aggregator) with its authentication,
// authorization, admission, audit and fairness, over the store.
//
// What is ours: the storage of every resource (package apiserver/storage), the
// membership of the `kubernetes` Service, the readiness of the store, the RBAC
// objects that let hosts join, and the options, which are set here and nowhere
// else.
//
// There is one Server per process: upstream keeps feature gates, metrics and
// admission capabilities in globals.
//
// # Order of start and stop
//
// The store must have a leader before New is called, and EtcdSocket must be
// served: upstream's NodePort allocator reads its bitmap while the chain is
// built. A start that cannot write for half a minute ends the process, as
// kube-apiserver does. When Run's context ends, this peer leaves the
// `kubernetes` Service, readyz fails, new requests are answered with 429 and a
// Retry-After, and watches are closed over a few seconds.
package apiserver
