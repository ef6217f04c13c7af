// Package enroll makes this host a peer: of a new cluster (Init), or of one that
// exists (Join). Both run as root, check everything they can before they change
// anything, write the identity (peer.json) as their commit mark, start the
// service through systemd, and wait until the peer takes part, saying for what
// they wait. A run that was interrupted or failed is simply run again: what was
// not committed is made anew, what was committed is gone on from.
package enroll
