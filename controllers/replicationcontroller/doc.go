// Package replicationcontroller keeps as many pods of a ReplicationController as
// it asks for.
//
// Reads ReplicationControllers and pods; creates and deletes pods, adopts and
// releases them, and writes ReplicationController status. The work is done by
// controllers/runtime/replicas, which has the invariants.
package replicationcontroller
