package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// serveJoin answers a host that wants to become a peer. The API server's chain
// has authenticated it by its join token and found it in the group of peers.
func (p *Peer) serveJoin(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		peer.WriteRefusal(w, http.StatusMethodNotAllowed, fmt.Errorf("only POST is answered here"))
		return
	}
	var q peer.JoinRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		peer.WriteRefusal(w, http.StatusBadRequest, fmt.Errorf("the join request cannot be read (%w): install the same version of controld on this host as on the peers", err))
		return
	}
	code, err := p.checkJoin(q)
	if err != nil {
		peer.WriteRefusal(w, code, err)
		return
	}
	resp := peer.JoinResponse{Cluster: p.id.Cluster}
	for _, m := range p.node.Members() {
		resp.Peers = append(resp.Peers, m.APIURLs...)
	}
	if q.Ready {
		resp.Voter, err = p.admit(r.Context(), q)
	} else {
		p.log.Info("a host asks to join as a peer", "peer", q.Name, "address", q.Address)
		resp.Bundle, err = pki.ReadBundle(p.pki)
	}
	if err != nil {
		peer.WriteRefusal(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(resp); err != nil {
		p.log.Warn("the answer to a joining host was not sent", "peer", q.Name, "error", err)
	}
}

// checkJoin refuses what cannot become right by asking again.
func (p *Peer) checkJoin(q peer.JoinRequest) (int, error) {
	if q.ID == "" || q.Name == "" || net.ParseIP(q.Address) == nil || q.PeerPort < 1 || q.PeerPort > 65535 {
		return http.StatusBadRequest, fmt.Errorf("the join request lacks an ID, a name, an address or a port")
	}
	for _, m := range p.node.Members() {
		host, _, _ := net.SplitHostPort(m.PeerAddr)
		same := m.ID.String() == q.ID
		switch {
		case m.Name == q.Name && !same:
			return http.StatusConflict, fmt.Errorf("the name %s is taken by the peer at %s: join with --name, or remove that peer first (`controld member remove %s` on another peer) if it is this host's former self", q.Name, host, q.Name)
		case host == q.Address && !same:
			return http.StatusConflict, fmt.Errorf("the address %s belongs to the peer %s: remove that peer first (`controld member remove %s` on another peer) if it is this host's former self", q.Address, m.Name, m.Name)
		}
	}
	return 0, nil
}

// admit makes the host a non-voter, and a voter as soon as it has caught up. It
// is asked again and again until it answers true.
func (p *Peer) admit(ctx context.Context, q peer.JoinRequest) (voter bool, err error) {
	for _, m := range p.node.Members() {
		if m.ID.String() == q.ID {
			if m.Voter {
				return true, nil
			}
			return false, p.promote(ctx, m.ID)
		}
	}
	p.log.Info("adding a peer without a vote", "peer", q.Name, "id", q.ID, "address", q.Address)
	return false, p.addNonvoter(ctx, q)
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
