package endpointslicemirroring

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

const (
	managedBy = "endpointslicemirroring-controller.k8s.io"
	// perSlice bounds the addresses of a slice, perSubset those that are mirrored of
	// a subset; upstream's values.
	perSlice  = 1000
	perSubset = 1000
	// leaderAnnotation marks Endpoints of old that were a lock.
	leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
	// maxPrefix leaves room for the hash in a name.
	maxPrefix = 240
)

// mirrored reports whether Endpoints are copied. svc is their Service, nil when
// there is none.
func mirrored(e *corev1.Endpoints, svc *corev1.Service) bool {
	_, lock := e.Annotations[leaderAnnotation]
	return svc != nil && svc.DeletionTimestamp == nil && len(svc.Spec.Selector) == 0 && e.DeletionTimestamp == nil &&
		!lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// wanted returns the slices for Endpoints, by name.
func wanted(e *corev1.Endpoints) map[string]*discoveryv1.EndpointSlice {
	type group struct {
		family    discoveryv1.AddressType
		ports     []discoveryv1.EndpointPort
		endpoints map[string]discoveryv1.Endpoint
	}
	groups := map[string]*group{}
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		ports := portsOf(subset)
		n := 0
		add := func(a *corev1.EndpointAddress, ready bool) {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil || n >= perSubset {
				return
			}
			n++
			family := discoveryv1.AddressTypeIPv4
			if ip.Is6() {
				family = discoveryv1.AddressTypeIPv6
			}
			key := hash(family, ports, 0)
			if groups[key] == nil {
				groups[key] = &group{family, ports, map[string]discoveryv1.Endpoint{}}
			}
			if _, there := groups[key].endpoints[a.IP]; there {
				return // ready ones come first
			}
			end := discoveryv1.Endpoint{Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: a.NodeName, TargetRef: a.TargetRef}
			if a.Hostname != "" {
				end.Hostname = &a.Hostname
			}
			groups[key].endpoints[a.IP] = end
		}
		for j := range subset.Addresses {
			add(&subset.Addresses[j], true)
		}
		for j := range subset.NotReadyAddresses {
			add(&subset.NotReadyAddresses[j], false)
		}
	}
	out := map[string]*discoveryv1.EndpointSlice{}
	for _, g := range groups {
		sorted := slices.SortedFunc(maps.Values(g.endpoints), func(a, b discoveryv1.Endpoint) int {
			return cmp.Compare(a.Addresses[0], b.Addresses[0])
		})
		for n, chunk := 0, []discoveryv1.Endpoint(nil); len(sorted) > 0; n++ {
			k := min(len(sorted), perSlice)
			chunk, sorted = sorted[:k], sorted[k:]
			s := newSlice(e, hash(g.family, g.ports, n))
			s.AddressType, s.Ports, s.Endpoints = g.family, g.ports, chunk
			out[s.Name] = s
		}
	}
	return out
}

func portsOf(subset *corev1.EndpointSubset) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for i := range subset.Ports {
		p := subset.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		out = append(out, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	slices.SortFunc(out, func(a, b discoveryv1.EndpointPort) int {
		return cmp.Or(cmp.Compare(*a.Name, *b.Name), cmp.Compare(*a.Protocol, *b.Protocol), cmp.Compare(*a.Port, *b.Port))
	})
	return out
}

func hash(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort, n int) string {
	h := fnv.New32a()
	encoded, err := json.Marshal(ports)
	if err != nil {
		panic(err) // of numbers and strings: cannot be
	}
	fmt.Fprintf(h, "%s %s %d", family, encoded, n)
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

var kind = corev1.SchemeGroupVersion.WithKind("Endpoints")

func newSlice(e *corev1.Endpoints, suffix string) *discoveryv1.EndpointSlice {
	labels := maps.Clone(e.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	delete(labels, corev1.IsHeadlessService)
	labels[discoveryv1.LabelServiceName] = e.Name
	labels[discoveryv1.LabelManagedBy] = managedBy
	annotations := maps.Clone(e.Annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	delete(annotations, corev1.EndpointsLastChangeTriggerTime)
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Name: e.Name[:min(len(e.Name), maxPrefix)] + "-" + suffix, Namespace: e.Namespace, Labels: labels, Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, kind)},
	}}
}

// same reports whether a slice is as wanted.
func same(have, want *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(have.Labels, want.Labels) && equality.Semantic.DeepEqual(have.Annotations, want.Annotations) &&
		equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences) &&
		equality.Semantic.DeepEqual(have.Ports, want.Ports) && equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints)
}
