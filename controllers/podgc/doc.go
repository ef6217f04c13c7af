// Package podgc deletes pods that nobody else will: those of nodes that are
// gone, those being deleted that no node holds, those on nodes marked out of
// service, and the oldest ended ones above a threshold.
//
// Reads pods and nodes; deletes pods with no grace, after marking those that had
// not ended as failed. A node counts as gone when it has been missing from the
// cache for a while and the API server does not know it either.
package podgc
