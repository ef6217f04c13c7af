// Package resourceclaim makes the ResourceClaims of pods from their templates,
// and lets go of claims whose pods are done.
//
// Reads pods, ResourceClaimTemplates and ResourceClaims. Creates claims, writes
// the names of them into the pod's status, reserves allocated claims for pods
// that were bound without the scheduler, takes ended pods off reservedFor, ends
// an allocation that nothing is left to use, and deletes made claims whose pod
// has ended.
//
// Invariants: a pod gets one claim for each entry of its list: what was created
// and is not in the cache yet is remembered. A consumer is taken off a claim only
// when the API server knows no pod of its UID, or the pod has ended. An
// allocation ends only when no consumer is left.
package resourceclaim
