// Package controlplane assembles one controld peer: it opens the replicated
// store, serves etcd's and Kubernetes' APIs over it, and, while the peer leads,
// runs the scheduler, the controllers and the virtual address.
//
// Start order: certificates, raft (raftfsm), etcd API, admin socket, then
// systemd is told READY, then the Kubernetes API as soon as the store answers.
// A peer that waits for its cluster is a started peer: it says what it waits for
// in systemd's status line and on the admin socket, and is never restarted for
// waiting.
//
// Stop order is the reverse, with the leadership and the virtual address handed
// over first, so that clients lose as little as possible.
package controlplane
