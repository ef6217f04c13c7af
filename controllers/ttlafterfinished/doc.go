// Package ttlafterfinished deletes Jobs some time after they have ended.
//
// Reads and deletes Jobs that say so in ttlSecondsAfterFinished.
//
// Invariants: a Job is read from the API server before it is deleted, for its
// time may just have been prolonged, and only that very state of it is deleted.
package ttlafterfinished
