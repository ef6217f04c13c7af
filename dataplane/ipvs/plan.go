package ipvs

import (
	"fmt"
	"net/netip"

	"github.com/tripod-cluster/tripod/dataplane"
)

// serverKey names a virtual server.
type serverKey struct {
	addr  netip.AddrPort
	proto dataplane.Protocol
}

func (k serverKey) String() string { return k.addr.String() + "/" + k.proto.String() }

// server is a virtual server that a service wants.
type server struct {
	key      serverKey
	affinity uint32 // persistence timeout in seconds; 0: none
	dests    []netip.AddrPort
}

// setName names an IP set, without the suffix of its family.
type setName string

// The sets. All are hash:ip,port and looked up by destination, if nothing else is said.
const (
	setServers  setName = "KUBE-IPVS-SERVERS"  // every virtual server of ours, draining ones too; a record, no rule uses it
	setActive   setName = "KUBE-IPVS-ACTIVE"   // virtual servers that take new connections
	setAddrs    setName = "KUBE-IPVS-ADDRS"    // hash:ip: addresses on the device
	setCluster  setName = "KUBE-IPVS-CLUSTER"  // cluster addresses: masqueraded unless the client is a pod
	setExternal setName = "KUBE-IPVS-EXTERNAL" // always masqueraded
	setLoop     setName = "KUBE-IPVS-LOOPBACK" // hash:ip,port,ip: endpoint, port, the same endpoint as the client
	setGuarded  setName = "KUBE-IPVS-GUARDED"  // load balancer addresses with source ranges
	setSources  setName = "KUBE-IPVS-SOURCES"  // hash:ip,port,net: their ranges
	setRefuse   setName = "KUBE-IPVS-REFUSE"   // node ports without endpoints
	setDrop     setName = "KUBE-IPVS-DROP"     // no endpoint on this node, though elsewhere
)

// entry is an element of a set. It is comparable.
type entry struct {
	set   setName
	addr  netip.Addr
	port  uint16
	proto dataplane.Protocol
	other netip.Prefix // the third dimension; invalid: none
}

// wanted is everything one service wants.
type wanted struct {
	servers []server
	entries []entry
	idle    []serverKey  // the service's addresses that have no server now: one that is there drains
	addrs   []netip.Addr // for the device
}

// nodeAddrs are the node's own addresses, those of the device left out.
type nodeAddrs struct {
	all      map[netip.Addr]bool
	nodePort []netip.Addr // the ones that node ports are on, sorted
}

func key(a netip.Addr, port uint16, p dataplane.Protocol) serverKey {
	return serverKey{netip.AddrPortFrom(a, port), p}
}

func in(set setName, k serverKey) entry {
	return entry{set: set, addr: k.addr.Addr(), port: k.addr.Port(), proto: k.proto}
}

// plan is pure.
func plan(s *dataplane.Service, node nodeAddrs) (*wanted, error) {
	if !s.ClusterIP.IsValid() || dataplane.FamilyOf(s.ClusterIP) != s.Family || s.ServicePort == 0 {
		return nil, fmt.Errorf("cluster address %s port %d is not a valid %s address and port", s.ClusterIP, s.ServicePort, s.Family)
	}
	p := &planner{s: s, sel: s.Select(), node: node}
	cluster := key(s.ClusterIP, s.ServicePort, s.Protocol)
	p.address(s.ClusterIP)
	if p.serve(cluster, p.sel.Internal, false) {
		p.add(in(setCluster, cluster))
	}
	for _, a := range s.ExternalIPs {
		p.external(key(a, s.ServicePort, s.Protocol), false)
	}
	for _, a := range s.LoadBalancerIPs {
		k := key(a, s.ServicePort, s.Protocol)
		p.external(k, false)
		if len(s.SourceRanges) == 0 {
			continue
		}
		p.add(in(setGuarded, k))
		ranges := append([]netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, s.SourceRanges...)
		for _, r := range ranges { // the node itself speaks from the address it speaks to
			if dataplane.FamilyOf(r.Addr()) != s.Family {
				continue
			}
			for _, h := range halves(r) {
				e := in(setSources, k)
				e.other = h
				p.add(e)
			}
		}
	}
	if s.NodePort != 0 {
		for _, a := range node.nodePort {
			if dataplane.FamilyOf(a) == s.Family {
				p.external(key(a, s.NodePort, s.Protocol), true)
			}
		}
	}
	p.hairpins()
	return &p.out, nil
}

// halves splits a range of everything in two: a hash of nets holds no prefix of length 0.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() > 0 {
		return []netip.Prefix{p.Masked()}
	}
	if p.Addr().Is4() {
		return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1")}
	}
	return []netip.Prefix{netip.MustParsePrefix("::/1"), netip.MustParsePrefix("8000::/1")}
}

type planner struct {
	s    *dataplane.Service
	sel  dataplane.Selection
	node nodeAddrs
	out  wanted
}

func (p *planner) add(e entry) { p.out.entries = append(p.out.entries, e) }

// address puts a service's address on the device. What is sent there and is no active server is refused.
func (p *planner) address(a netip.Addr) {
	p.out.addrs = append(p.out.addrs, a)
	p.add(entry{set: setAddrs, addr: a})
}

// serve wants a virtual server, if it has endpoints; without it says what becomes of connections.
func (p *planner) serve(k serverKey, eps []dataplane.Endpoint, own bool) bool {
	if len(eps) == 0 {
		p.out.idle = append(p.out.idle, k)
		switch {
		case len(p.sel.Cluster) > 0:
			p.add(in(setDrop, k))
		case own:
			p.add(in(setRefuse, k))
		}
		return false
	}
	v := server{key: k, affinity: uint32(p.s.AffinityTimeout.Seconds())}
	for _, e := range eps {
		v.dests = append(v.dests, e.Addr)
	}
	p.out.servers = append(p.out.servers, v)
	p.add(in(setActive, k))
	return true
}

func (p *planner) external(k serverKey, nodePort bool) {
	own := nodePort || p.node.all[k.addr.Addr()] // then the address has other uses, and is there already
	if !own {
		p.address(k.addr.Addr())
	}
	if p.serve(k, p.sel.External, own) && !p.s.ExternalLocal {
		p.add(in(setExternal, k))
	}
}

// hairpins lists the endpoints that could reach themselves: a pod of this node must not see its own address as the
// other end.
func (p *planner) hairpins() {
	for _, e := range p.s.Endpoints {
		if a := e.Addr.Addr(); e.Local {
			p.add(entry{set: setLoop, addr: a, port: e.Addr.Port(), proto: p.s.Protocol, other: netip.PrefixFrom(a, a.BitLen())})
		}
	}
}
