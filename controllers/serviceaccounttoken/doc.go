// Package serviceaccounttoken fills the Secrets of type
// kubernetes.io/service-account-token, which people make for long-lived tokens.
//
// Reads ServiceAccounts and such Secrets. Writes the Secrets' token, namespace
// and CA, deletes Secrets whose ServiceAccount is gone, and takes deleted
// Secrets off the ServiceAccount's list.
//
// Invariants: a Secret is read from the API server before it is filled, so that
// a token is made once. A Secret is deleted only when the API server says that
// there is no such ServiceAccount, of that UID.
package serviceaccounttoken
