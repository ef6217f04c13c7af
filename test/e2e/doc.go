// Package e2e tests a cluster that `make up` made: three hosts with real systemd,
// installed from the packages. The tests act as operators and clients do, through
// kubectl, systemctl, apt and the network, and assert what those see.
//
// The tests of this package share one fleet and run one after the other. Each
// works in a namespace of its own, and one that breaks something on purpose mends
// it and waits until the cluster is whole again. The machine's own network is
// never used: connections are opened inside the fleet's switch namespace.
package e2e
