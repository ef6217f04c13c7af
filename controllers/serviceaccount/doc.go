// Package serviceaccount keeps a ServiceAccount "default" in every namespace
// that is not being deleted.
//
// Reads namespaces and ServiceAccounts; writes ServiceAccounts. Its key is the
// namespace's name.
package serviceaccount
