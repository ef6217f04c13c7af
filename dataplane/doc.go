// Package dataplane turns Services and their endpoints into rules of the kernel.
//
// The model (Service, Endpoint) knows no Kubernetes types; package dataplane/kube fills it from the API.
// A Backend (dataplane/iptables, dataplane/ipvs) brings the kernel in line with services it is given and does
// nothing else: coalescing, partial updates, retries with backoff, periodic verification, connection tracking,
// status, metrics and the switch from one backend to another are written once, in Dataplane.
//
// Ownership: a Backend owns the kernel objects it names (chains, sets, virtual servers, its device) and repairs
// them on Sync; it never touches others. Rules outlive the process: stopping the daemon stops no traffic.
package dataplane
