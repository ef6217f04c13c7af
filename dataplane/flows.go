package dataplane

import (
	"context"
	"slices"
)

// staleFlows says which UDP services need their tracked flows looked at when was (nil: new) becomes is (nil: gone).
// A flow pins a client's source port to a backend for as long as datagrams come; so it has to go when its backend
// has, and when it was opened before there was any backend.
func staleFlows(was, is *Service) []*Service {
	switch {
	case was == nil && is == nil:
		return nil
	case is == nil:
		if was.Protocol != UDP {
			return nil
		}
		empty := *was
		empty.Endpoints = nil
		return []*Service{&empty}
	case is.Protocol != UDP:
		return nil
	case was == nil:
		return []*Service{is}
	}
	var out []*Service
	if !slices.Equal(was.VirtualAddrs(), is.VirtualAddrs()) || was.NodePort != is.NodePort {
		empty := *was
		empty.Endpoints = nil
		out = append(out, &empty)
	}
	now := serving(is)
	lost := len(serving(was)) == 0 && len(now) > 0
	for e := range serving(was) {
		if !now[e] {
			lost = true
		}
	}
	if lost || len(out) > 0 {
		out = append(out, is)
	}
	return out
}

func serving(s *Service) map[Endpoint]bool {
	m := map[Endpoint]bool{}
	for _, e := range s.Endpoints {
		if e.Ready || e.Serving {
			m[Endpoint{Addr: e.Addr}] = true
		}
	}
	return m
}

func udpOnly(all []*Service) []*Service {
	var out []*Service
	for _, s := range all {
		if s.Protocol == UDP {
			out = append(out, s)
		}
	}
	return out
}

func (d *Dataplane) cleanFlows(ctx context.Context, services []*Service) {
	if d.cfg.Flows == nil || len(services) == 0 {
		return
	}
	n, err := d.cfg.Flows.Clean(ctx, services)
	d.metrics.flows.Add(float64(n))
	if err != nil {
		d.metrics.errors.Inc()
		d.log.Warn("stale UDP flows not cleaned; datagrams may go to a backend that left until they time out", "services", len(services), "err", err)
	}
}
