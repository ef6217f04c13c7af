package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Pod is a pod with what the scheduler asks of it, worked out once.
type Pod struct {
	*corev1.Pod
	Requests Resources
	Ports    []HostPort
	Affinity nodeaffinity.RequiredNodeAffinity
	// Owner is the controller of the pod, empty where there is none: pods of one
	// owner are spread.
	Owner types.UID
}

// HostPort is a port of the host that a pod takes.
type HostPort struct {
	Protocol corev1.Protocol
	IP       string
	Port     int32
}

const anyIP = "0.0.0.0"

// conflicts says whether both cannot be taken on one host.
func (p HostPort) conflicts(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}

// NewPod works out what the scheduler needs. p is not copied and must not change.
func NewPod(p *corev1.Pod) *Pod {
	q := &Pod{Pod: p, Requests: OfPod(p), Affinity: nodeaffinity.GetRequiredNodeAffinity(p)}
	for _, r := range p.OwnerReferences {
		if r.Controller != nil && *r.Controller {
			q.Owner = r.UID
		}
	}
	for _, cs := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range cs {
			for _, port := range c.Ports {
				if port.HostPort <= 0 {
					continue
				}
				h := HostPort{Protocol: port.Protocol, IP: port.HostIP, Port: port.HostPort}
				if h.Protocol == "" {
					h.Protocol = corev1.ProtocolTCP
				}
				if h.IP == "" || h.IP == "::" {
					h.IP = anyIP
				}
				q.Ports = append(q.Ports, h)
			}
		}
	}
	return q
}

// Node is a node and what stands on it. The scheduler's one goroutine and its
// filters read it; only Cluster changes it.
type Node struct {
	*corev1.Node           // nil while only its pods are known
	Allocatable  Resources // what pods may ask for in total
	Requested    Resources // what the pods on it ask for
	ForScore     Resources // the same, with a small amount for pods that ask for nothing
	Pods         map[types.UID]*Pod
}

// Room is what is left of one resource; see Resources for the units.
func (n *Node) Room() Resources {
	r := n.Allocatable
	r.Scalars = nil
	for name, v := range n.Allocatable.Scalars {
		if r.Scalars == nil {
			r.Scalars = map[corev1.ResourceName]int64{}
		}
		r.Scalars[name] = v
	}
	r.add(&n.Requested, -1)
	return r
}

// PortTaken returns the first of the ports that a pod on the node has.
func (n *Node) PortTaken(ports []HostPort) (HostPort, bool) {
	if len(ports) == 0 {
		return HostPort{}, false
	}
	for _, p := range n.Pods {
		for _, have := range p.Ports {
			for _, want := range ports {
				if have.conflicts(want) {
					return want, true
				}
			}
		}
	}
	return HostPort{}, false
}

func (n *Node) place(p *Pod, sign int64) {
	score := p.Requests.ForScore()
	n.Requested.add(&p.Requests, sign)
	n.ForScore.add(&score, sign)
	if sign > 0 {
		n.Pods[p.UID] = p
	} else {
		delete(n.Pods, p.UID)
	}
}

// Cluster holds the nodes. It is not safe for use by several goroutines: its
// owner serialises.
type Cluster struct {
	nodes   map[string]*Node
	where   map[types.UID]string // node of each pod that counts
	assumed map[types.UID]bool   // of those, the ones that no watch event has confirmed
	sorted  []*Node              // nodes that exist, by name; nil when out of date
}

// New makes an empty one.
func New() *Cluster {
	return &Cluster{nodes: map[string]*Node{}, where: map[types.UID]string{}, assumed: map[types.UID]bool{}}
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

func (c *Cluster) node(name string) *Node {
	n := c.nodes[name]
	if n == nil {
		n = &Node{Pods: map[types.UID]*Pod{}}
		c.nodes[name] = n
	}
	return n
}

// SetNode adds or updates a node.
func (c *Cluster) SetNode(n *corev1.Node) {
	e := c.node(n.Name)
	if e.Node == nil {
		c.sorted = nil
	}
	e.Node, e.Allocatable = n, Of(n.Status.Allocatable)
}

// RemoveNode forgets a node; pods on it count again if it comes back.
func (c *Cluster) RemoveNode(name string) {
	n := c.nodes[name]
	if n == nil {
		return
	}
	n.Node, c.sorted = nil, nil
	c.drop(name)
}

func (c *Cluster) drop(name string) {
	if n := c.nodes[name]; n.Node == nil && len(n.Pods) == 0 {
		delete(c.nodes, name)
	}
}

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

func (c *Cluster) put(p *Pod, node string) {
	c.node(node).place(p, 1)
	c.where[p.UID] = node
}

func (c *Cluster) take(uid types.UID) {
	name, ok := c.where[uid]
	if !ok {
		return
	}
	n := c.nodes[name]
	n.place(n.Pods[uid], -1)
	delete(c.where, uid)
	delete(c.assumed, uid)
	c.drop(name)
}
