// Package tokencleaner deletes bootstrap tokens that have expired: Secrets of the
// type bootstrap.kubernetes.io/token in kube-system with a time in the past under
// "expiration". A token without a time never expires; one whose time cannot be
// read counts as expired, as in the authenticator.
package tokencleaner
