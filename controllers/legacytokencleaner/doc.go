// Package legacytokencleaner retires tokens that old versions of Kubernetes made
// for every ServiceAccount and that nobody uses.
//
// Reads Secrets of type kubernetes.io/service-account-token, ServiceAccounts,
// pods, and the ConfigMap kube-system/kube-apiserver-legacy-service-account-token-tracking,
// which says since when uses are recorded. Marks Secrets with
// kubernetes.io/legacy-token-invalid-since and later deletes them.
//
// Invariants: only Secrets that their ServiceAccount lists are touched, for those
// were made by the system and not by a person. None is marked that was made or
// used within a year, or that a pod names; none is deleted within a year of its
// marking, and only as it was seen.
package legacytokencleaner
