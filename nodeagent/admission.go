package nodeagent

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/tripod-cluster/tripod/nodeagent/pods"
)

// refusal is why a pod cannot run here, in kubelet's reasons.
type refusal struct{ reason, message string }

// admit says whether pod can run beside others on a node with what node has.
// The scheduler saw to all of it, unless it was passed by, or knew less.
func admit(pod *v1.Pod, others []*v1.Pod, node *v1.Node) *refusal {
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return &refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	if len(pod.Spec.NodeSelector) > 0 && !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return &refusal{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return &refusal{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}
	}
	for _, t := range node.Spec.Taints {
		if t.Effect == v1.TaintEffectNoExecute && !slices.ContainsFunc(pod.Spec.Tolerations, func(tol v1.Toleration) bool { return tolerates(tol, t) }) {
			return &refusal{"TaintToleration", fmt.Sprintf("Predicate TaintToleration failed: node(s) had untolerated taint(s) {%s: %s}", t.Key, t.Value)}
		}
	}
	if r := ports(pod, others); r != nil {
		return r
	}
	return fits(pod, others, node.Status.Allocatable)
}

func tolerates(t v1.Toleration, taint v1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "", v1.TolerationOpEqual:
		return t.Value == taint.Value
	case v1.TolerationOpExists:
		return true
	}
	return false
}

type hostPort struct {
	ip, proto string
	port      int32
}

func hostPorts(p *v1.Pod) []hostPort {
	var out []hostPort
	add := func(c v1.Container) {
		for _, cp := range c.Ports {
			port := cp.HostPort
			if port == 0 && p.Spec.HostNetwork {
				port = cp.ContainerPort
			}
			if port > 0 {
				proto := string(cp.Protocol)
				if proto == "" {
					proto = "TCP"
				}
				out = append(out, hostPort{cp.HostIP, proto, port})
			}
		}
	}
	for _, c := range p.Spec.InitContainers {
		if pods.Restartable(&c) {
			add(c)
		}
	}
	for _, c := range p.Spec.Containers {
		add(c)
	}
	return out
}

func ports(pod *v1.Pod, others []*v1.Pod) *refusal {
	wild := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	for _, want := range hostPorts(pod) {
		for _, o := range others {
			for _, have := range hostPorts(o) {
				if have.port == want.port && have.proto == want.proto && (have.ip == want.ip || wild(have.ip) || wild(want.ip)) {
					return &refusal{"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}
				}
			}
		}
	}
	return nil
}

func fits(pod *v1.Pod, others []*v1.Pod, have v1.ResourceList) *refusal {
	if max, ok := have[v1.ResourcePods]; ok && int64(len(others))+1 > max.Value() {
		return &refusal{"OutOfpods", fmt.Sprintf("Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", len(others), max.Value())}
	}
	used := v1.ResourceList{}
	for _, o := range others {
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	want := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	names := make([]string, 0, len(want))
	for n := range want {
		names = append(names, string(n))
	}
	slices.Sort(names) // the same refusal each time
	for _, n := range names {
		name := v1.ResourceName(n)
		q, limit, u := want[name], have[name], used[name]
		if q.IsZero() {
			continue
		}
		sum := u.DeepCopy()
		sum.Add(q)
		if sum.Cmp(limit) > 0 {
			a, b, c := q.Value(), u.Value(), limit.Value()
			if name == v1.ResourceCPU {
				a, b, c = q.MilliValue(), u.MilliValue(), limit.MilliValue()
			}
			return &refusal{"OutOf" + n, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", n, a, b, c)}
		}
	}
	return nil
}
