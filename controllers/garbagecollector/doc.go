// Package garbagecollector deletes objects whose owners are gone, and carries
// out the foreground and orphan policies of deletions.
//
// Reads the metadata of every resource that can be listed, watched and deleted,
// custom ones included, as discovery shows them at run time; writes deletions,
// owner references and the two finalizers (foregroundDeletion, orphan).
//
// It keeps a graph of all objects by UID with edges from owner to dependent. The
// graph only says where to look: before an object is deleted it is read from the
// API server, and so is each of its owners that the graph does not hold, and the
// deletion is bound to the UID and resource version that were read.
//
// Invariants:
//   - an object with a living owner is never deleted; references to owners that
//     are gone are taken off it instead;
//   - an owner of a kind that discovery does not know (its CRD is gone, its API
//     server is down) is not held to be absent;
//   - a namespaced owner of another namespace, or of a cluster-wide object, owns
//     nothing: the first counts as absent, the second as unresolvable;
//   - nothing is decided before every watched resource has been listed once.
package garbagecollector
