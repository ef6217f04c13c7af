// Package job runs a Job's pods until enough of them have succeeded or too many
// have failed.
//
// Reads Jobs and pods; creates and deletes pods, adopts and releases them, takes
// their tracking finalizer away, and writes Job status.
//
// A pod that has ended is counted in three steps, each of which may be lost or
// repeated: its UID goes into status.uncountedTerminatedPods (or its index into
// status.completedIndexes) and is written; its finalizer
// batch.kubernetes.io/job-tracking is removed; and when the cache shows that, the
// UID becomes a number in status.succeeded or status.failed.
//
// Invariants: no finalizer is removed of a pod that counts before its place in
// the status is written, so that none is missed, and no UID becomes a number
// while its pod has the finalizer, so that none is counted twice, whoever leads.
// What this instance has removed and the cache still shows is remembered. Shortly
// after its start, when the cache may be older than an earlier leader's last
// writes, a pod is read from the API server before it is counted. A Job whose
// pods in the cache may be incomplete neither creates nor deletes. A Job becomes
// Complete or Failed when no pod of it runs any more and all are counted; until
// then SuccessCriteriaMet or FailureTarget tells of it.
//
// How long a failed pod's successor waits is worked out from the pods that are
// there, so it holds over a change of the leader. Pods that were taken away by a
// suspension or a lower parallelism count neither way.
package job
