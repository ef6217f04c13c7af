// Package endpointslicemirroring copies Endpoints that somebody writes by hand,
// for a Service without a selector, to EndpointSlices.
//
// Reads Endpoints, Services and EndpointSlices; creates, updates and deletes the
// EndpointSlices that it manages.
//
// Invariants: there is one slice for each address family and set of ports, or
// several for more than a thousand addresses, with a name made from them, so that
// creating one twice gives the same one. Slices of others are never touched.
package endpointslicemirroring
