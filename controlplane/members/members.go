// Package members shows and changes a raftfsm.Node's members in the form of
// etcd's API: it is the etcdapi.Cluster and the etcdapi.MemberChanger of a peer.
package members

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/tripod-cluster/tripod/etcdapi"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
)

// Options say how members may be changed through etcd's API.
type Options struct {
	// Rules are those for every change.
	Rules raftfsm.Rules
	// AddRefused, when set, is the answer to every addition; a gRPC status error.
	AddRefused error
}

// Cluster is an etcdapi.Cluster and an etcdapi.MemberChanger over a Node and the
// Store that it applies to.
type Cluster struct {
	node  *raftfsm.Node
	store *store.Store
	opts  Options
}

// New returns the cluster that node belongs to.
func New(node *raftfsm.Node, s *store.Store, o Options) *Cluster {
	return &Cluster{node: node, store: s, opts: o}
}

// ClusterID is 0 until the peer has learnt it.
func (c *Cluster) ClusterID() uint64 { return c.node.ClusterID() }

// Self is the peer's ID.
func (c *Cluster) Self() uint64 { return uint64(c.node.ID()) }

// Learner tells whether the peer is known not to vote.
func (c *Cluster) Learner() bool { return c.node.Learner() }

// Leader is the leader's ID; 0 when none is known.
func (c *Cluster) Leader() uint64 { id, _ := c.node.Leader(); return uint64(id) }

// Term is the raft term.
func (c *Cluster) Term() uint64 { t, _, _ := c.node.Indexes(); return t }

// Index is the last commit index known.
func (c *Cluster) Index() uint64 { _, i, _ := c.node.Indexes(); return i }

// AppliedIndex is the last index applied.
func (c *Cluster) AppliedIndex() uint64 { _, _, i := c.node.Indexes(); return i }

// Members are all members, ordered by ID.
func (c *Cluster) Members() []etcdapi.Member {
	var out []etcdapi.Member
	for _, m := range c.node.Members() {
		out = append(out, shown(m))
	}
	return out
}

func shown(m raftfsm.Member) etcdapi.Member {
	urls := m.PeerURLs
	if len(urls) == 0 {
		urls = []string{"https://" + m.PeerAddr}
	}
	return etcdapi.Member{ID: uint64(m.ID), Name: m.Name, PeerURLs: urls, ClientURLs: m.ClientURLs, Learner: !m.Voter && !m.WantsVote}
}

// AddMember makes an ID for a peer that is still to start. One that is to vote
// does so when it has caught up; it is shown as a voter from the beginning.
func (c *Cluster) AddMember(ctx context.Context, peerURLs []string, learner bool) (etcdapi.Member, error) {
	if c.opts.AddRefused != nil {
		return etcdapi.Member{}, c.opts.AddRefused
	}
	addr, urls, err := parse(peerURLs)
	if err != nil {
		return etcdapi.Member{}, err
	}
	m, err := c.node.Create(ctx, raftfsm.Member{PeerAddr: addr, PeerURLs: urls, WantsVote: !learner}, c.opts.Rules)
	if err != nil {
		return etcdapi.Member{}, rpcError(err)
	}
	return shown(m), c.node.ReadIndex(ctx) // so that this peer lists it
}

// RemoveMember removes a member for good.
func (c *Cluster) RemoveMember(ctx context.Context, id uint64) error {
	return c.changed(ctx, c.node.RemoveBy(ctx, raftfsm.PeerID(id), c.opts.Rules))
}

// UpdateMember changes the peer URLs at which the others reach a member.
func (c *Cluster) UpdateMember(ctx context.Context, id uint64, peerURLs []string) error {
	addr, urls, err := parse(peerURLs)
	if err != nil {
		return err
	}
	return c.changed(ctx, c.node.Readdress(ctx, raftfsm.Member{ID: raftfsm.PeerID(id), PeerAddr: addr, PeerURLs: urls}))
}

// PromoteMember makes a learner that has caught up a voter.
func (c *Cluster) PromoteMember(ctx context.Context, id uint64) error {
	return c.changed(ctx, c.node.PromoteBy(ctx, raftfsm.PeerID(id), c.opts.Rules))
}

// changed returns err, or when this peer has seen the change.
func (c *Cluster) changed(ctx context.Context, err error) error {
	if err != nil {
		return rpcError(err)
	}
	return c.node.ReadIndex(ctx)
}

// MoveLeader hands the leadership to a voter.
func (c *Cluster) MoveLeader(ctx context.Context, id uint64) error {
	i := slices.IndexFunc(c.node.Members(), func(m raftfsm.Member) bool { return uint64(m.ID) == id && m.Voter })
	if i < 0 {
		return rpctypes.ErrGRPCBadLeaderTransferee
	}
	if id == c.Self() {
		return nil
	}
	return rpcError(c.node.TransferLeadership(ctx, raftfsm.PeerID(id)))
}

// parse returns the address of the first URL, and all of them in etcd's order.
func parse(peerURLs []string) (addr string, urls []string, err error) {
	for _, raw := range peerURLs {
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" || u.User != nil {
			return "", nil, rpctypes.ErrGRPCMemberBadURLs
		}
		host, port, err := net.SplitHostPort(u.Host)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
			return "", nil, rpctypes.ErrGRPCMemberBadURLs
		}
		addr = cmp.Or(addr, u.Host)
		urls = append(urls, raw)
	}
	if len(urls) == 0 {
		return "", nil, rpctypes.ErrGRPCMemberBadURLs
	}
	slices.Sort(urls)
	return addr, urls, nil
}

// answers are etcd's for what raftfsm says.
var answers = []struct{ err, rpc error }{
	{raftfsm.ErrNotMember, rpctypes.ErrGRPCMemberNotFound},
	{raftfsm.ErrRemoved, rpctypes.ErrGRPCMemberNotFound},
	{raftfsm.ErrLagging, rpctypes.ErrGRPCLearnerNotReady},
	{raftfsm.ErrNotStarted, rpctypes.ErrGRPCMemberNotEnoughStarted},
	{raftfsm.ErrUnhealthy, rpctypes.ErrGRPCUnhealthy},
	{raftfsm.ErrQuorum, rpctypes.ErrGRPCUnhealthy},
	{raftfsm.ErrAddressTaken, rpctypes.ErrGRPCPeerURLExist},
	{raftfsm.ErrNotLearner, rpctypes.ErrGRPCMemberNotLearner},
	{raftfsm.ErrTooManyLearners, rpctypes.ErrGRPCTooManyLearners},
}

func rpcError(err error) error {
	for _, a := range answers {
		if errors.Is(err, a.err) {
			return a.rpc
		}
	}
	return err
}
