// Package namespace empties namespaces that are being deleted, and then lets
// them go.
//
// Reads namespaces and discovery; deletes the objects of every namespaced
// resource, custom ones included, pods before all others; writes namespace
// conditions that say what is left and why, and takes the finalizer "kubernetes"
// off when nothing is.
//
// Invariant: the finalizer stays as long as any resource could not be listed or
// its group not be discovered, for there might be something left in it.
package namespace
