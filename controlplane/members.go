package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/raftfsm"
)

// memberTimeout bounds a change of the members.
const memberTimeout = 10 * time.Second

// errJoin answers who would add a member through etcd's API: a peer needs certificates first.
var errJoin = status.Error(codes.Unimplemented, "etcdserver: peers are added by controld: run 'controld token' on a peer and 'controld join' on the new one")

func parseAddr(s string) (netip.Addr, error) { return netip.ParseAddr(s) }

func (p *Peer) addNonvoter(ctx context.Context, q peer.JoinRequest) error {
	id, err := raftfsm.ParsePeerID(q.ID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	return p.node.AddNonvoter(ctx, raftfsm.Member{
		ID: id, Name: q.Name, PeerAddr: hostPort(q.Address, q.PeerPort),
		ClientURLs: []string{"https://" + hostPort(q.Address, q.EtcdPort)},
		APIURLs:    []string{"https://" + hostPort(q.Address, q.APIPort)},
	})
}

// promote makes a non-voter a voter; that it has not caught up is no error.
func (p *Peer) promote(ctx context.Context, id raftfsm.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	if err := p.node.Promote(ctx, id); err != nil && !errors.Is(err, raftfsm.ErrLagging) {
		return err
	}
	return nil
}

func (p *Peer) removePeer(ctx context.Context, nameOrID string) error {
	for _, m := range slices.Concat(p.node.Members(), p.node.Expected()) {
		if m.Name != nameOrID && m.ID.String() != nameOrID {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, memberTimeout)
		defer cancel()
		p.log.Info("removing a peer", "name", m.Name, "id", m.ID.String())
		return p.node.Remove(ctx, m.ID)
	}
	return fmt.Errorf("there is no peer %q: `controld status` lists them", nameOrID)
}

func (p *Peer) stepDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	return p.node.TransferLeadership(ctx, 0)
}
