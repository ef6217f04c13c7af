// Package statefulset keeps the numbered pods of a StatefulSet, each with its
// own name and volume claims, and rolls them from one template to the next.
//
// Reads StatefulSets, pods, PersistentVolumeClaims and ControllerRevisions;
// creates, labels and deletes pods, creates claims and keeps their owners,
// creates and deletes ControllerRevisions, adopts and releases pods and
// revisions, and writes StatefulSet status.
//
// Invariants: there are never two pods of one number, for the name is made from
// it. With the policy OrderedReady, a pod is created only when all of lower
// numbers are available, and deleted for good only when all of higher numbers
// are gone. A rolling update goes from the highest number down to the partition
// and takes away no available pod when maxUnavailable are not.
//
// A pod that is of an outdated template and cannot become ready (it is pending,
// crashes, or has never been ready) holds up nothing: it is replaced at once, so
// that a StatefulSet stuck on a broken template goes on when the template is
// mended. Nothing is lost by it that was there. Upstream's controller waits for
// such a pod until somebody deletes it.
//
// Claims are deleted by the garbage collector alone, through owner references
// that say what persistentVolumeClaimRetentionPolicy asks for. A claim that
// another controller owns is never touched.
package statefulset
