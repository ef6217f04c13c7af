// Package plugin says what a part of a scheduling decision is. A filter refuses
// nodes and says why; a score orders those that are left. Each lives in a folder
// of its own under plugins/.
package plugin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

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
	StorageChanged                    // a volume or a claim came or changed
	NamespaceLabels                   // a namespace came, or its labels changed
	AnyEvent        Event = ^Event(0)
)

// Reason is why a node is refused.
type Reason struct {
	// Plugin is the name of the filter; the scheduler sets it.
	Plugin string
	// Text is for people, and is counted over the nodes: it names no node.
	Text string
}

// View is the cluster as one decision sees it.
type View interface {
	// Nodes are all nodes, by name.
	Nodes() []*cluster.Node
	// Claim and Volume return nil where there is none.
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	Volume(name string) *corev1.PersistentVolume
	// NamespaceLabels returns nil where there is no such namespace.
	NamespaceLabels(name string) labels.Set
}

// FilterFunc judges one node for the pod it was prepared for. It is called from
// several goroutines at once. Nil means that the pod fits.
type FilterFunc func(*cluster.Node) *Reason

// Filter is a hard constraint.
type Filter interface {
	// Name as in kube-scheduler's configuration.
	Name() string
	// Wakes are the changes that can turn a refusal of this filter.
	Wakes() Event
	// Prepare looks at the pod once. It returns nil, nil where the constraint does
	// not concern the pod, and a reason where no node can be right.
	Prepare(*cluster.Pod, View) (FilterFunc, *Reason)
}

// MaxScore is the best score that a node can have of one plugin; 0 is the worst.
const MaxScore = 100

// ScoreFunc gives the score of one node that fits, from 0 to MaxScore.
type ScoreFunc func(*cluster.Node) int64

// Score is a preference.
type Score interface {
	Name() string
	// Weight is what its scores are multiplied with.
	Weight() int64
	// Prepare looks at the pod and the nodes that fit. It returns nil where the
	// preference does not tell the nodes apart.
	Prepare(pod *cluster.Pod, v View, fit []*cluster.Node) ScoreFunc
}
