// Package bench measures a cluster that `make up` made, from where its clients stand: daemons at rest, writes through
// the API, pods that start, endpoint changes that traffic sees. `make bench` runs it; TRIPOD_BENCH is the directory for
// NAME.json, without it there are only the tables. One part alone: go test ./test/bench -run TestBench/pods -v.
//
// Each part works in a namespace of its own that it removes, and waits until it is gone, so that no part measures what
// another left to do. Every part ends by itself: counts are fixed and every wait is bounded.
package bench
