// Package csr approves the certificate requests of nodes, signs approved
// requests with the cluster CA, and deletes requests that are over.
//
// Reads CertificateSigningRequests, nodes, and asks the API server's authorizer
// whether the requestor may; writes approval, certificate and conditions.
//
// What it approves:
//   - a node's first client certificate (system:node:NAME in system:nodes), from
//     a requestor that may create certificatesigningrequests/nodeclient, such as
//     a join token, unless a node of that name is alive;
//   - a node's next client certificate, from that node itself, if it may create
//     certificatesigningrequests/selfnodeclient;
//   - a node's serving certificate, from that node itself, for names and
//     addresses that its Node object reports and no others.
//
// It signs for kubernetes.io/kube-apiserver-client-kubelet,
// kubernetes.io/kubelet-serving and kubernetes.io/kube-apiserver-client; the
// last is approved by people only.
package csr
