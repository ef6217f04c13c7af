package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/etcdapi"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
)

// memberTimeout bounds a change of the members.
const memberTimeout = 10 * time.Second

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
	for _, m := range p.node.Members() {
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

// etcdCluster shows the members as etcd's API does.
type etcdCluster struct {
	node  *raftfsm.Node
	store *store.Store
}

func (c etcdCluster) ClusterID() uint64 { return c.node.ClusterID() }
func (c etcdCluster) Self() uint64      { return uint64(c.node.ID()) }
func (c etcdCluster) Leader() uint64    { id, _ := c.node.Leader(); return uint64(id) }
func (c etcdCluster) Term() uint64      { t, _, _ := c.node.Indexes(); return t }
func (c etcdCluster) Index() uint64     { _, i, _ := c.node.Indexes(); return i }
func (c etcdCluster) AppliedIndex() uint64 {
	_, _, i := c.node.Indexes()
	return i
}

// DBSize is the size of keys and values with their history; the log is apart.
func (c etcdCluster) DBSize() int64 { return c.store.Size() }

func (c etcdCluster) Members() []etcdapi.Member {
	var out []etcdapi.Member
	for _, m := range c.node.Members() {
		out = append(out, etcdapi.Member{ID: uint64(m.ID), Name: m.Name, PeerURLs: []string{"https://" + m.PeerAddr}, ClientURLs: m.ClientURLs, Learner: !m.Voter})
	}
	return out
}
