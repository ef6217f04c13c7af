// Package volumebinding holds a pod to nodes that can reach its volumes. Claims
// that wait for their first consumer get their volume, or are handed to their
// provisioner, when the pod's node has been chosen: Reserve holds what was found
// for it, Commit writes it and waits until the claims are bound.
package volumebinding
