// Package endpointslice keeps the EndpointSlices of every Service that selects
// pods.
//
// Reads Services, pods, nodes and EndpointSlices; writes EndpointSlices that
// are labelled as managed by it. Which endpoint goes into which slice, their
// conditions (ready, serving, terminating) and their topology hints are decided
// by the library k8s.io/endpointslice.
//
// Invariant: slices are planned only when the cache holds every slice that was
// written before, or endpoints would be doubled.
package endpointslice
