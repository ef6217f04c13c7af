// Package controllers runs the cluster's controllers: the loops that bring what
// is there closer to what the API says is wanted.
//
// Each controller is a package of its own below this one, on the shared machine
// of controllers/runtime; the list in registration.go says which there are.
// They run where the raft leader is and see the cluster through a Kubernetes
// client and its caches only.
package controllers
