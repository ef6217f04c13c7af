// Package members shows a raftfsm.Node's members in the form of etcd's API: it is
// the etcdapi.Cluster of a peer.
package members

import (
	"github.com/tripod-cluster/tripod/etcdapi"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
)

// Cluster is an etcdapi.Cluster over a Node and the Store that it applies to.
type Cluster struct {
	node  *raftfsm.Node
	store *store.Store
}

// New returns the cluster that node belongs to.
func New(node *raftfsm.Node, s *store.Store) *Cluster { return &Cluster{node: node, store: s} }

// ClusterID is 0 until the peer has learnt it.
func (c *Cluster) ClusterID() uint64 { return c.node.ClusterID() }

// Self is the peer's ID.
func (c *Cluster) Self() uint64 { return uint64(c.node.ID()) }

// Leader is the leader's ID; 0 when none is known.
func (c *Cluster) Leader() uint64 { id, _ := c.node.Leader(); return uint64(id) }

// Term is the raft term.
func (c *Cluster) Term() uint64 { t, _, _ := c.node.Indexes(); return t }

// Index is the last commit index known.
func (c *Cluster) Index() uint64 { _, i, _ := c.node.Indexes(); return i }

// AppliedIndex is the last index applied.
func (c *Cluster) AppliedIndex() uint64 { _, _, i := c.node.Indexes(); return i }

// DBSize is the size of keys and values with their history, in bytes; the log is apart.
func (c *Cluster) DBSize() int64 { return c.store.Size() }

// Members are all members, ordered by ID.
func (c *Cluster) Members() []etcdapi.Member {
	var out []etcdapi.Member
	for _, m := range c.node.Members() {
		out = append(out, etcdapi.Member{ID: uint64(m.ID), Name: m.Name, PeerURLs: []string{"https://" + m.PeerAddr}, ClientURLs: m.ClientURLs, Learner: !m.Voter})
	}
	return out
}
