package cluster

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster holds the nodes. It is not safe for use by several goroutines: its
// owner serialises. Between changes any number may read.
type Cluster struct {
	nodes     map[string]*Node
	slots     []*Node // by Slot; nil where free
	free      []int32
	where     map[types.UID]string // node of each pod that counts
	assumed   map[types.UID]bool   // of those, the ones that no watch event has confirmed
	nominated map[types.UID]string // node that a pending pod was promised
	sorted    []*Node              // nodes that exist, by name; nil when out of date
	claims    map[string]int       // pods that use a claim, by namespace/name
	images    map[string]int       // nodes that have an image, by its name

	epoch   uint64
	journal journal

	namespaces map[string]labels.Set
	topologies map[string]*Topology
	labelKeys  map[string]bool // of pods: those that a selector in use looks at
	kinds      map[string]*Kind
	counters   map[string]*Counter
	termKeys   [2]map[string]int // topology keys of terms of pods that count: required away; any other
}

// New makes an empty one.
func New() *Cluster {
	return &Cluster{
		nodes: map[string]*Node{}, where: map[types.UID]string{}, assumed: map[types.UID]bool{}, nominated: map[types.UID]string{}, images: map[string]int{}, claims: map[string]int{},
		namespaces: map[string]labels.Set{}, topologies: map[string]*Topology{}, labelKeys: map[string]bool{}, kinds: map[string]*Kind{}, counters: map[string]*Counter{},
		termKeys: [2]map[string]int{{}, {}}, epoch: 1,
	}
}

// Nodes are the nodes that exist, by name. The slice is the cluster's own.
func (c *Cluster) Nodes() []*Node {
	if c.sorted == nil {
		c.sorted = make([]*Node, 0, len(c.nodes))
		for _, n := range c.nodes {
			if n.Node != nil {
				c.sorted = append(c.sorted, n)
			}
		}
		slices.SortFunc(c.sorted, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	}
	return c.sorted
}

// Get returns the node of that name, nil when it does not exist.
func (c *Cluster) Get(name string) *Node {
	if n := c.nodes[name]; n != nil && n.Node != nil {
		return n
	}
	return nil
}

// Epoch moves when nodes come, go, or are labelled or tainted, when namespaces
// are labelled, and when a selector looks at new labels: what was worked out over
// all nodes is void then.
func (c *Cluster) Epoch() uint64 { return c.epoch }

// UsersOf is how many pods on nodes use the claim.
func (c *Cluster) UsersOf(namespace, claim string) int { return c.claims[namespace+"/"+claim] }

// ImageNodes is how many nodes have the image.
func (c *Cluster) ImageNodes(image string) int { return c.images[image] }

func (c *Cluster) node(name string) *Node {
	n := c.nodes[name]
	if n == nil {
		n = &Node{Pods: map[types.UID]*Pod{}}
		if k := len(c.free); k > 0 {
			n.slot, c.free = c.free[k-1], c.free[:k-1]
			c.slots[n.slot] = n
		} else {
			n.slot = int32(len(c.slots))
			c.slots = append(c.slots, n)
		}
		c.nodes[name] = n
	}
	return n
}

// SetNode adds or updates a node.
func (c *Cluster) SetNode(n *corev1.Node) {
	e := c.node(n.Name)
	old := e.Node
	e.Node = n
	switch {
	case old == nil:
		c.sorted = nil
		c.epoch++
	case !maps.Equal(old.Labels, n.Labels), old.Spec.Unschedulable != n.Spec.Unschedulable, !equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints):
		c.epoch++
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Status.Allocatable, n.Status.Allocatable) {
		e.Allocatable = Of(n.Status.Allocatable)
		c.journal.add(e.slot)
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Status.Images, n.Status.Images) {
		c.setImages(e, imagesOf(n))
		c.journal.add(e.slot)
	}
}

func (c *Cluster) setImages(n *Node, images map[string]int64) {
	for name := range n.Images {
		if c.images[name]--; c.images[name] == 0 {
			delete(c.images, name)
		}
	}
	for name := range images {
		c.images[name]++
	}
	n.Images = images
}

// RemoveNode forgets a node; pods on it count again if it comes back.
func (c *Cluster) RemoveNode(name string) {
	n := c.nodes[name]
	if n == nil || n.Node == nil {
		return
	}
	c.setImages(n, nil)
	n.Node, c.sorted = nil, nil
	c.epoch++
	c.drop(name)
}

func (c *Cluster) drop(name string) {
	if n := c.nodes[name]; n.Node == nil && len(n.Pods) == 0 && len(n.Nominated) == 0 {
		delete(c.nodes, name)
		c.slots[n.slot] = nil
		c.free = append(c.free, n.slot)
	}
}

// SetNamespace notes the labels of a namespace.
func (c *Cluster) SetNamespace(name string, l labels.Set) {
	if old, ok := c.namespaces[name]; !ok || !maps.Equal(old, l) {
		c.namespaces[name] = l
		c.rematch()
	}
}

// RemoveNamespace forgets a namespace.
func (c *Cluster) RemoveNamespace(name string) {
	delete(c.namespaces, name)
	c.rematch()
}

// NamespaceLabels returns nil where there is no such namespace.
func (c *Cluster) NamespaceLabels(name string) labels.Set { return c.namespaces[name] }

// SetPod counts a pod that the API server says is bound (and has not ended) on
// its node; it confirms or corrects an assumption.
func (c *Cluster) SetPod(p *Pod) {
	c.take(p.UID)
	c.put(p, p.Spec.NodeName)
}

// RemovePod stops counting a pod that ended or was deleted.
func (c *Cluster) RemovePod(uid types.UID) { c.take(uid) }

// Assume counts a pod on a node before it is bound.
func (c *Cluster) Assume(p *Pod, node string) {
	c.take(p.UID)
	c.put(p, node)
	c.assumed[p.UID] = true
}

// Forget takes an assumption back; a pod that a watch event has confirmed stays.
func (c *Cluster) Forget(uid types.UID) {
	if c.assumed[uid] {
		c.take(uid)
	}
}

// Counted says whether the pod stands on some node, by word of the API server or
// by assumption.
func (c *Cluster) Counted(uid types.UID) bool { _, ok := c.where[uid]; return ok }

// Lookup is a pod that counts and its node, nil where it does not count. The node
// may not exist yet.
func (c *Cluster) Lookup(uid types.UID) (*Pod, *Node) {
	name, ok := c.where[uid]
	if !ok {
		return nil, nil
	}
	n := c.nodes[name]
	return n.Pods[uid], c.Get(name)
}

// Assumed says whether the pod stands on a node by assumption alone.
func (c *Cluster) Assumed(uid types.UID) bool { return c.assumed[uid] }

// Pods is how many pods stand on nodes.
func (c *Cluster) Pods() int { return len(c.where) }

// AssumedPods is how many of them by assumption alone.
func (c *Cluster) AssumedPods() int { return len(c.assumed) }

// Fragments are the parts, 0 to 1, of a resource of all nodes that are free and
// of no use.
type Fragments struct{ CPU, Memory float64 }

// full is what part of a resource may be left of it when nothing else fits.
const full = 0.02

// Fragmentation is measured: what is free of a resource is of no use where its
// node has nothing left of the other, or no room for another pod.
func (c *Cluster) Fragmentation() Fragments {
	var has, lost [2]float64
	for _, n := range c.nodes {
		if n.Node == nil {
			continue
		}
		a, r := &n.Allocatable, n.Room()
		cpu, mem := float64(a.MilliCPU), float64(a.Memory)
		has[0], has[1] = has[0]+cpu, has[1]+mem
		noCPU, noMemory, noPods := float64(r.MilliCPU) <= full*cpu, float64(r.Memory) <= full*mem, r.Pods <= 0
		if !noCPU && (noMemory || noPods) {
			lost[0] += float64(r.MilliCPU)
		}
		if !noMemory && (noCPU || noPods) {
			lost[1] += float64(r.Memory)
		}
	}
	var f Fragments
	if has[0] > 0 {
		f.CPU = lost[0] / has[0]
	}
	if has[1] > 0 {
		f.Memory = lost[1] / has[1]
	}
	return f
}

func (c *Cluster) put(p *Pod, node string) {
	c.countTerms(p.Terms, 1)
	n := c.node(node)
	n.place(p, 1)
	c.where[p.UID] = node
	c.enter(p, n)
	c.journal.add(n.slot)
}

func (c *Cluster) take(uid types.UID) {
	name, ok := c.where[uid]
	if !ok {
		return
	}
	n := c.nodes[name]
	p := n.Pods[uid]
	n.place(p, -1)
	c.leave(p, n)
	c.countTerms(p.Terms, -1)
	c.journal.add(n.slot)
	delete(c.where, uid)
	delete(c.assumed, uid)
	c.drop(name)
}

// Nominate promises room on a node to a pending pod; an empty node takes the
// promise back.
func (c *Cluster) Nominate(p *Pod, node string) {
	if was, ok := c.nominated[p.UID]; ok {
		n := c.nodes[was]
		c.countTerms(n.denominate(p.UID).Terms, -1)
		c.journal.add(n.slot)
		delete(c.nominated, p.UID)
		if was != node {
			c.drop(was)
		}
	}
	if node == "" {
		return
	}
	c.countTerms(p.Terms, 1)
	n := c.node(node)
	n.Nominated = append(n.Nominated, p)
	c.nominated[p.UID] = node
	c.journal.add(n.slot)
}

// NominatedOn is the node that the pod was promised, empty when there is none.
func (c *Cluster) NominatedOn(uid types.UID) string { return c.nominated[uid] }

// Without calls f with the pods gone, and puts them back: they are asked for on
// the node. Readers that follow the journal see nothing of it, so f must not let
// them look.
func (c *Cluster) Without(n *Node, pods []*Pod, f func()) { c.suppose(n, pods, -1, f) }

// With calls f with pending pods placed on the node, and takes them off again.
func (c *Cluster) With(n *Node, pods []*Pod, f func()) { c.suppose(n, pods, 1, f) }

func (c *Cluster) suppose(n *Node, pods []*Pod, sign int64, f func()) {
	for _, p := range pods {
		c.Suppose(n, p, sign > 0)
	}
	f()
	for _, p := range pods {
		c.Suppose(n, p, sign < 0)
	}
}

// Suppose puts a pod on the node, or takes it off, for a question of what if: no
// journal tells of it, and the caller undoes it before anybody else reads.
func (c *Cluster) Suppose(n *Node, p *Pod, present bool) {
	if present {
		n.place(p, 1)
		c.enter(p, n)
	} else {
		n.place(p, -1)
		c.leave(p, n)
	}
}

// journal lists slots of nodes in the order of their changes.
type journal struct {
	base    uint64 // number of the first entry that is kept
	entries []int32
}

const journalLength = 1 << 16

func (j *journal) add(slot int32) {
	if len(j.entries) >= journalLength {
		half := len(j.entries) / 2
		j.base += uint64(half)
		j.entries = append(j.entries[:0], j.entries[half:]...)
	}
	j.entries = append(j.entries, slot)
}

// Now is the cursor for what will change from here on.
func (c *Cluster) Now() uint64 { return c.journal.base + uint64(len(c.journal.entries)) }

// Changed returns the slots of nodes that changed since the cursor, with repeats,
// and the cursor for the next call. ok is false when too much has happened since:
// the caller starts anew. The slice is the cluster's own until its next change.
func (c *Cluster) Changed(cursor uint64) (slots []int32, next uint64, ok bool) {
	next = c.Now()
	if cursor < c.journal.base {
		return nil, next, false
	}
	return c.journal.entries[cursor-c.journal.base:], next, true
}

// At is the node in a slot, nil where there is none that exists.
func (c *Cluster) At(slot int) *Node {
	if n := c.slots[slot]; n != nil && n.Node != nil {
		return n
	}
	return nil
}

// Slots is one more than the highest slot.
func (c *Cluster) Slots() int { return len(c.slots) }
