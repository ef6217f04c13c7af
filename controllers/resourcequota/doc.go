// Package resourcequota recounts what the objects of a namespace use of its
// ResourceQuotas.
//
// Reads ResourceQuotas, pods, Services, PersistentVolumeClaims and ConfigMaps,
// and the number of objects of any kind; writes ResourceQuota status.
//
// The API server's admission adds to the use when it lets an object in; this
// controller brings it to what is there: down when objects have gone, and to the
// truth when a request failed after it was counted. What an object uses is asked
// of the same evaluators that admission has, through Usage.
//
// Invariants: the status is written from the version that was read, so that what
// admission adds meanwhile is a conflict, not lost. The use is not lowered shortly
// after admission has changed it, for the object that it let in may not be in the
// cache yet. What could not be counted keeps its last value.
package resourcequota
