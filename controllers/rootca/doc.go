// Package rootca publishes the cluster's root certificate in every namespace,
// as the ConfigMap kube-root-ca.crt that the volumes of service account tokens
// mount.
//
// Reads namespaces and ConfigMaps; writes that one ConfigMap. Its key is the
// namespace's name. An edit of the data is undone, other fields are left alone.
package rootca
