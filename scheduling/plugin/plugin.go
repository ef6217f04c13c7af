// Package plugin says what a part of a scheduling decision is. A filter refuses
// nodes and says why; a score orders those that are left. Each lives in a folder
// of its own under plugins/.
//
// A verdict or a score is a function of the pod and one node. What else it hangs
// on it declares as the counters that it reads (Over): nodes that are equal for
// all of them are judged once. That is what lets pods of one shape share what was
// worked out for the first of them.
package plugin

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
)

// Event is a set of kinds of change in the cluster, by which a pod that was
// refused may come to fit.
type Event uint32

// The kinds of change.
const (
	NodeAdded       Event = 1 << iota // a node came
	NodeAllocatable                   // what a node offers changed
	NodeLabels                        // labels of a node changed
	NodeTaints                        // taints or unschedulable of a node changed
	PodRemoved                        // a placed pod ended, was deleted, or asks for less
	PodPlaced                         // a pod was placed, or labels of a placed one changed
	StorageChanged                    // a volume, a claim, a class or a driver came or changed
	NamespaceLabels                   // a namespace came, or its labels changed
	ClaimsChanged                     // a resource claim, slice or device class came, changed or went
	AnyEvent        Event = ^Event(0)
)

// Change is one change in the cluster.
type Change struct {
	Kind Event
	// Node that came or changed, or on which the pod stands; nil where none is
	// concerned.
	Node *cluster.Node
	// Pod that was placed or removed; nil for other changes.
	Pod *cluster.Pod
}

// Reason is why a node is refused.
type Reason struct {
	// Plugin is the name of the filter.
	Plugin string
	// Texts are for people, and are counted over the nodes: they name no node.
	Texts []string
	// Final means that the removal of pods from the node cannot help.
	Final bool
}

// Refuse makes a Reason of a filter that the removal of pods may turn.
func Refuse(filter string, texts ...string) *Reason { return &Reason{Plugin: filter, Texts: texts} }

// RefuseFinal makes a Reason of a filter that the removal of pods cannot turn.
func RefuseFinal(filter string, texts ...string) *Reason {
	return &Reason{Plugin: filter, Texts: texts, Final: true}
}

// View is the cluster as one decision sees it.
type View interface {
	cluster.Namespaces
	// Nodes are all nodes, by name.
	Nodes() []*cluster.Node
	// LabelsInUse is as in cluster.Cluster.
	LabelsInUse(labels.Set) (labels.Set, string)
	// UsersOf is how many pods on nodes use the claim.
	UsersOf(namespace, claim string) int
	// ImageNodes is how many nodes have the image.
	ImageNodes(image string) int
	// AwayKeys and PreferenceKeys are as in cluster.Cluster.
	AwayKeys() []string
	PreferenceKeys() []string
	// Counter finds or makes a counter; the engine gives it back when the pod's
	// shape is forgotten.
	Counter(cluster.CounterSpec) *cluster.Counter
	// Topology divides the nodes by a label.
	Topology(key string) *cluster.Topology
	Objects
}

// Objects are what the API holds beside nodes and pods. A function returns nil
// where there is no such object, or nothing that knows of such.
type Objects interface {
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	Volumes() []*corev1.PersistentVolume
	StorageClass(name string) *storagev1.StorageClass
	CSINode(name string) *storagev1.CSINode
	CSIDriver(name string) *storagev1.CSIDriver
	CSICapacities(class string) []*storagev1.CSIStorageCapacity
	// Attachments are the volumes of CSI drivers that are attached to a node, or
	// are being detached.
	Attachments(node string) []*storagev1.VolumeAttachment
	// Held is what reservations hold; never nil.
	Held() *Assumed
	// OwnerSelector selects the pods of the Services, ReplicaSets, controllers and
	// StatefulSets that the pod belongs to; nil where it belongs to none.
	OwnerSelector(*corev1.Pod) labels.Selector
	// ServiceSelectors are those of the Services that select the pod.
	ServiceSelectors(*corev1.Pod) []labels.Selector
}

// Check is a filter that has looked at a pod. Nil: it does not concern the pod.
type Check struct {
	// Fits judges one node: nil means that the pod fits. Where Over is empty it is
	// called from several goroutines at once.
	Fits func(*cluster.Node) *Reason
	// Over are the counters on whose count in the node's domain the verdict hangs,
	// beside the node itself and the pods on it.
	Over []*cluster.Counter
}

// Filter is a hard constraint.
type Filter interface {
	// Name as in kube-scheduler's configuration.
	Name() string
	// Wakes are the changes that can turn a refusal of this filter.
	Wakes() Event
	// Prepare looks at the pod once. It returns nil, nil where the constraint does
	// not concern the pod, and a reason where no node can be right.
	Prepare(*cluster.Pod, View) (*Check, *Reason)
}

// Hinter is a Filter that can tell more exactly whether a change helps.
type Hinter interface {
	// Helps says whether the change can turn a refusal of the pod. It is asked for
	// changes in Wakes, and may say yes too often, never no when it does help.
	Helps(*cluster.Pod, Change) bool
}

// Help is a change that would let a pod in.
type Help struct {
	// Text says what it takes: "needs 300m more cpu".
	Text string
	// Cost orders answers: the part of the node that is lacking, or 1 for a change
	// that is not of amounts.
	Cost float64
}

// Helper is a Filter that can say what would turn its refusal.
type Helper interface {
	// WouldHelp is asked about a node that the filter, and no other, refuses.
	WouldHelp(*cluster.Pod, *cluster.Node) (Help, bool)
}

// MaxScore is the best score that a node can have of one plugin; 0 is the worst.
const MaxScore = 100

// NoValue is what Rating.Of gives for a node that it cannot value: it does not
// count for the lowest and the highest, and is worth 0.
const NoValue = math.MinInt64

// Rating is a score that has looked at a pod. Nil: it does not tell nodes apart.
type Rating struct {
	// Of gives what the node is worth. Where Over is empty it is called from several
	// goroutines at once.
	Of func(*cluster.Node) int64
	// Over is as in Check.
	Over []*cluster.Counter
	// Scale turns a value into 0 to MaxScore, given the lowest and the highest of
	// the nodes that fit. Nil: Of is so already.
	Scale func(v, lowest, highest int64) int64
}

// Score is a preference.
type Score interface {
	// Name as in kube-scheduler's configuration.
	Name() string
	Prepare(*cluster.Pod, View) *Rating
}

// Highest scales so that the highest value is best and 0 the worst.
func Highest(v, _, highest int64) int64 {
	if highest == 0 {
		return 0
	}
	return v * MaxScore / highest
}

// Fewest scales so that 0 is best and the highest value the worst.
func Fewest(v, _, highest int64) int64 {
	if highest == 0 {
		return MaxScore
	}
	return MaxScore - v*MaxScore/highest
}

// Between scales from the lowest value, the worst, to the highest.
func Between(v, lowest, highest int64) int64 {
	if highest == lowest {
		return 0
	}
	return (v - lowest) * MaxScore / (highest - lowest)
}

// Reserver takes what a placement needs beside room on the node, and makes it so
// before the pod is bound. A Filter may be one.
type Reserver interface {
	// Reserve is called when a node has been chosen, with the view locked; an error
	// gives the node up. It returns nil where the pod needs nothing.
	Reserve(p *cluster.Pod, n *cluster.Node, o Objects) (Reservation, error)
}

// Reservation is what Reserve took.
type Reservation interface {
	// Commit writes it to the API and waits until it holds. It is called without
	// the lock, and may take minutes.
	Commit(context.Context, kubernetes.Interface) error
	// Release ends it, with the view locked: what it took is known to all by then,
	// or is given up.
	Release()
}

// Assumed is what reservations hold of volumes; its owner locks it.
type Assumed struct {
	// Volumes are being bound: the claim, as namespace/name, by volume.
	Volumes map[string]string
	// Claims are being provisioned for a node, by namespace/name.
	Claims map[string]string
}

// NewAssumed holds nothing.
func NewAssumed() *Assumed {
	return &Assumed{Volumes: map[string]string{}, Claims: map[string]string{}}
}
