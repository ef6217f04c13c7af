package endpoints

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	library "k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
)

// capacity is the most addresses an Endpoints object holds, by API convention.
const capacity = 1000

// address is one pod as seen by one Service.
type address struct {
	corev1.EndpointAddress
	ready bool
	ports []corev1.EndpointPort
}

// subsets computes the subsets of a Service: addresses with equal ports share
// one. The result is sorted, so that equal states give equal objects.
func subsets(svc *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	byPorts := map[string][]address{}
	for _, pod := range pods {
		a, ok := addressOf(svc, pod)
		if !ok {
			continue
		}
		key := portsKey(a.ports)
		byPorts[key] = append(byPorts[key], a)
	}
	var out []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(byPorts)) {
		list := byPorts[key]
		slices.SortFunc(list, func(a, b address) int {
			return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.TargetRef.UID, b.TargetRef.UID))
		})
		s := corev1.EndpointSubset{Ports: list[0].ports}
		for _, a := range list {
			if a.ready {
				s.Addresses = append(s.Addresses, a.EndpointAddress)
			} else {
				s.NotReadyAddresses = append(s.NotReadyAddresses, a.EndpointAddress)
			}
		}
		out = append(out, s)
	}
	return out
}

func addressOf(svc *corev1.Service, pod *corev1.Pod) (address, bool) {
	if !endpointsliceutil.ShouldPodBeInEndpoints(pod, svc.Spec.PublishNotReadyAddresses) {
		return address{}, false
	}
	ip := podIP(svc, pod)
	if ip == "" {
		return address{}, false
	}
	a := address{
		EndpointAddress: corev1.EndpointAddress{
			IP: ip, NodeName: &pod.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		},
		ready: svc.Spec.PublishNotReadyAddresses || endpointsliceutil.IsPodReady(pod),
	}
	if endpointsliceutil.ShouldSetHostname(pod, svc) {
		a.Hostname = pod.Spec.Hostname
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		n, err := library.FindPort(pod, p)
		if err != nil {
			continue // this pod has no port of that name
		}
		a.ports = append(a.ports, corev1.EndpointPort{Name: p.Name, Port: int32(n), Protocol: p.Protocol, AppProtocol: p.AppProtocol})
	}
	slices.SortFunc(a.ports, func(a, b corev1.EndpointPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	// A Service without ports may be headless; one with ports needs a match.
	return a, len(a.ports) > 0 || (len(svc.Spec.Ports) == 0 && svc.Spec.ClusterIP == corev1.ClusterIPNone)
}

// podIP picks the pod's address of the Service's first family.
func podIP(svc *corev1.Service, pod *corev1.Pod) string {
	v6 := len(svc.Spec.IPFamilies) > 0 && svc.Spec.IPFamilies[0] == corev1.IPv6Protocol
	if len(svc.Spec.IPFamilies) == 0 {
		if a, err := netip.ParseAddr(svc.Spec.ClusterIP); err == nil {
			v6 = a.Is6()
		} else {
			return pod.Status.PodIP
		}
	}
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is6() == v6 {
			return ip.IP
		}
	}
	return ""
}

func portsKey(ports []corev1.EndpointPort) string {
	var b strings.Builder
	for _, p := range ports {
		app := ""
		if p.AppProtocol != nil {
			app = *p.AppProtocol
		}
		fmt.Fprintf(&b, "%s/%d/%s/%s;", p.Name, p.Port, p.Protocol, app)
	}
	return b.String()
}

// truncate cuts the subsets down to capacity, not-ready addresses first, and
// reports whether it had to. Each subset keeps a share by its size.
func truncate(all []corev1.EndpointSubset) bool {
	ready, notReady := 0, 0
	for _, s := range all {
		ready += len(s.Addresses)
		notReady += len(s.NotReadyAddresses)
	}
	if ready+notReady <= capacity {
		return false
	}
	readyLeft := min(ready, capacity)
	notReadyLeft := capacity - readyLeft
	for i := range all {
		s := &all[i]
		n := share(len(s.Addresses), ready, min(ready, capacity), readyLeft)
		s.Addresses, readyLeft = s.Addresses[:n], readyLeft-n
		n = share(len(s.NotReadyAddresses), notReady, capacity-min(ready, capacity), notReadyLeft)
		s.NotReadyAddresses, notReadyLeft = s.NotReadyAddresses[:n], notReadyLeft-n
	}
	return true
}

// share is n of total scaled to room, rounded up, within what is left.
func share(n, total, room, left int) int {
	if total == 0 {
		return 0
	}
	return min(n, (n*room+total-1)/total, left)
}
