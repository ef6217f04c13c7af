// Package clustertrustbundle publishes the authority of the API servers' serving
// certificates as a ClusterTrustBundle of the signer
// kubernetes.io/kube-apiserver-serving.
//
// Reads and writes the ClusterTrustBundles of that signer. Its one key is the
// signer.
//
// Invariants: the bundle's name is made of its content, and the new one is there
// before an old one is deleted, so that a client that looks always finds one.
package clustertrustbundle
