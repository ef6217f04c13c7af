// Package server is the node's HTTPS API on port 10250, the one that the API
// server, metrics scrapers and kubelet clients speak: container logs, exec,
// attach, port-forward, pods, statistics, metrics, health.
//
// Who may call: a client certificate of the cluster CA, or a bearer token that
// the API server reviews; what a caller may do is asked by SubjectAccessReview on
// nodes/<subresource>, as a kubelet does, with the answers cached. Nothing but
// /healthz is served to a caller without a name, and that only on the separate
// health address.
//
// Streams (exec, attach, port-forward) are handed to the runtime's own streaming
// server: the package asks CRI for its address and passes the upgraded connection
// through. The API server translates kubectl's WebSockets to SPDY on its side.
package server
