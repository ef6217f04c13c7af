// Package pki makes and reads what a cluster trusts: its certificate
// authorities, the certificates of one peer, join tokens and kubeconfigs.
//
// A cluster has four authorities and one key pair, made once by the first peer
// and handed to the others when they join:
//
//	ca              API serving, clients (admin, kubelets), kubelet serving
//	peer-ca         raft peers, both directions
//	etcd/ca         the etcd v3 port: server and clients
//	front-proxy-ca  the aggregation layer's identity towards extension servers
//	sa              signs ServiceAccount tokens
//
// All keys are ECDSA P-256 but the ServiceAccount key, which is RSA 2048 because
// token verifiers outside the cluster commonly expect RS256. Private keys are
// written 0600, by rename, and never logged.
package pki
