// Package revision keeps the history of a workload's pod template as
// ControllerRevisions, for the controllers of StatefulSet and DaemonSet.
//
// A revision's data is a strategic merge patch of the owner that replaces
// spec.template; kubectl rollout reads, compares and applies it. Its name is the
// owner's with the hash of the data, so creating it twice gives the same one; a
// hash that another template has taken is met by counting the owner's
// collisionCount up. Going back to an earlier template makes its revision the
// newest again.
package revision
