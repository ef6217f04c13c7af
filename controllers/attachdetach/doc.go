// Package attachdetach attaches volumes of CSI drivers to the nodes whose pods
// use them, and detaches them when no pod there does any more.
//
// Reads pods, PersistentVolumeClaims, PersistentVolumes, CSIDrivers and nodes.
// Writes VolumeAttachments, which the driver's attacher carries out, and
// node.status.volumesAttached, which the kubelet waits for.
//
// Invariants: a volume that is not for several nodes has one attachment at a
// time: a second node waits until the first one's is gone. Before an attachment
// is deleted the node's status, read anew, must not list the volume as in use,
// and the volume is taken from volumesAttached first, so that the kubelet does
// not begin to mount it. Two things only override a volume in use: the node is
// not ready and the detaching has waited six minutes, or a person has put the
// taint node.kubernetes.io/out-of-service on the node.
//
// Only attachments under the names that this controller gives are its own. Nodes
// whose kubelet attaches itself are left alone.
package attachdetach
