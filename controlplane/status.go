package controlplane

import (
	"context"
	"net"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// Status is the cluster as this peer sees it. What cannot be had within a few
// seconds is left out, with the reason.
func (p *Peer) Status(ctx context.Context) peer.Status {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	raft := p.node.Status(ctx)
	p.mu.Lock()
	waiting, term := p.waiting, p.term
	p.mu.Unlock()
	s := peer.Status{
		Name: p.id.Name, ID: p.id.ID, Address: p.id.Address, Version: p.version, Cluster: p.id.Cluster,
		Ready: waiting == "", Waiting: waiting, Term: raft.Term, Revision: p.store.Revision(), CertificatesExpire: p.firstExpiry(),
	}
	switch {
	case raft.Removed:
		s.Ready, s.Waiting = false, "nothing: this peer was removed from the cluster; `controld reset` clears this host"
	case raft.DiskFull:
		s.Ready, s.Waiting = false, "free disk space: the store takes no writes, reads go on; free some space on the file system of "+p.cfg.StateDir
	}
	for _, m := range raft.Peers {
		host, _, _ := net.SplitHostPort(m.Member.PeerAddr)
		ps := peer.PeerStatus{
			ID: m.Member.ID.String(), Name: m.Member.Name, Address: host, Voter: m.Member.Voter,
			Leader: m.Member.ID == raft.Leader, Reachable: m.Reachable, Applied: m.Applied, Lag: m.Lag, Version: m.Version,
		}
		if ps.Leader {
			s.Leader = ps.Name
		}
		s.Peers = append(s.Peers, ps)
	}
	for _, m := range p.node.Expected() {
		if i := slices.IndexFunc(s.Peers, func(q peer.PeerStatus) bool { return q.ID == m.ID.String() }); i >= 0 {
			s.Peers[i].Expected = true
			continue
		}
		host, _, _ := net.SplitHostPort(m.PeerAddr)
		s.Peers = append(s.Peers, peer.PeerStatus{ID: m.ID.String(), Name: m.Name, Address: host, Expected: true})
	}
	s.Snapshots = p.backups.Status()
	s.Encryption = p.encryption()
	s.Nodes, s.NodesError = p.nodes(ctx)
	if term != nil {
		s.Duties = term.status()
	}
	return s
}

func (p *Peer) nodes(ctx context.Context) ([]peer.NodeStatus, string) {
	client, err := p.client()
	if err != nil {
		return nil, err.Error()
	}
	l, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err.Error()
	}
	out := make([]peer.NodeStatus, 0, len(l.Items))
	for i := range l.Items {
		n := &l.Items[i]
		s := peer.NodeStatus{Name: n.Name}
		s.Ready, s.Reason = nodeReady(n)
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && s.Address == "" {
				s.Address = a.Address
			}
		}
		out = append(out, s)
	}
	return out, ""
}

// firstExpiry is when the first of this peer's certificates ends.
func (p *Peer) firstExpiry() time.Time {
	var first time.Time
	for _, f := range []pki.Files{p.pki.APIServer(), p.pki.KubeletClient(), p.pki.FrontProxyClient(), p.pki.Peer(), p.pki.EtcdServer(), p.pki.EtcdClient()} {
		b, err := os.ReadFile(f.Cert)
		if err != nil {
			continue
		}
		if c, err := pki.ParseCert(b); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return first
}
