package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Pod is a pod with what the scheduler asks of it, worked out once.
type Pod struct {
	*corev1.Pod
	Priority int32
	Requests Resources
	Ports    []HostPort
	Affinity nodeaffinity.RequiredNodeAffinity
	// Terms are its wishes about other pods; nil where it has none.
	Terms *Terms
	// Invalid says why Terms cannot be read; the pod fits nowhere then.
	Invalid error
	// Owner is the controller of the pod, empty where there is none.
	Owner types.UID
	// Claims are those of its volumes, as namespace/name.
	Claims []string

	kind     *Kind // while it counts on a node
	template string
}

// HostPort is a port of the host that a pod takes.
type HostPort struct {
	Protocol corev1.Protocol
	IP       string
	Port     int32
}

const anyIP = "0.0.0.0"

// Conflicts says whether both cannot be taken on one host.
func (p HostPort) Conflicts(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}

// NewPod works out what the scheduler needs. p is not copied and must not change.
func NewPod(p *corev1.Pod) *Pod {
	q := &Pod{Pod: p, Priority: corehelpers.PodPriority(p), Requests: OfPod(p), Affinity: nodeaffinity.GetRequiredNodeAffinity(p)}
	q.Terms, q.Invalid = parseTerms(p)
	q.Claims = claimsOf(p)
	for _, r := range p.OwnerReferences {
		if r.Controller != nil && *r.Controller {
			q.Owner = r.UID
		}
	}
	for i := range p.Spec.InitContainers {
		// An init container that has ended holds no port; a sidecar does not end.
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			q.Ports = appendPorts(q.Ports, c)
		}
	}
	for i := range p.Spec.Containers {
		q.Ports = appendPorts(q.Ports, &p.Spec.Containers[i])
	}
	return q
}

func appendPorts(to []HostPort, c *corev1.Container) []HostPort {
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
		to = append(to, h)
	}
	return to
}
