// Package bootstrap makes a host a node of a cluster and keeps its certificates.
//
// Join checks the host first (preflight), learns the cluster's CA from a server
// whose chain has the hash in the join token, asks for a client certificate by a
// CertificateSigningRequest as the bootstrap token's user, makes sure that the
// name it was given is not another living host's, and only then writes anything:
// containerd's configuration, the CA, the certificate with its key, the peers.
// Until that point a failure leaves the host as it was; after it, running the
// same command again goes on from there.
//
// Manager renews a certificate while noded runs, between 70 and 80 % of its
// life: the client certificate with the old one, the serving certificate with
// the node's current addresses.
package bootstrap
