package peers

import (
	"net"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// FromSlice lists the peers in an EndpointSlice of Service default/kubernetes as
// HOST:PORT; nothing for any other slice.
func FromSlice(s *discoveryv1.EndpointSlice) []string {
	if s == nil || s.Namespace != "default" || s.Labels[discoveryv1.LabelServiceName] != "kubernetes" {
		return nil
	}
	port := DefaultPort
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil || *p.Name == "https" || *p.Name == "") {
			port = int(*p.Port)
		}
	}
	var out []string
	for _, e := range s.Endpoints {
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, a := range e.Addresses {
			out = append(out, net.JoinHostPort(a, strconv.Itoa(port)))
		}
	}
	return out
}
