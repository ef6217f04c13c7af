// Package etcdsuite holds the store to etcd's own tests: those of etcd's repository
// that drive servers and etcdctl from outside run here against test/etcdserver,
// unchanged, and so do the examples of its Go client.
//
// A few run with every go test; `make etcd-suite` runs them all, each in a process
// and, for root, in a network of its own. expected.txt lists what cannot pass
// and why. A test that is listed and passes fails the run, as one does that is not
// listed and fails.
package etcdsuite
