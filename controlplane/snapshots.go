package controlplane

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tripod-cluster/tripod/backup"
	"github.com/tripod-cluster/tripod/backup/etcddb"
)

// openBackups prepares the schedule of snapshots.
func (p *Peer) openBackups(reg prometheus.Registerer) (err error) {
	p.backups, err = backup.New(backup.Config{
		Dir: p.cfg.SnapshotDirectory, Interval: time.Duration(p.cfg.SnapshotInterval), Keep: p.cfg.SnapshotKeep,
		Store: p.store, Origin: p.origin, Ready: p.caughtUp, Uploads: p.node.IsLeader,
		Destinations: p.cfg.SnapshotDestinations(), Log: p.log, Registerer: reg,
	})
	return err
}

// origin says what a snapshot of this peer's store tells of the cluster.
func (p *Peer) origin() etcddb.Origin {
	term, _, applied := p.node.Indexes()
	o := etcddb.Origin{Cluster: p.node.ClusterID(), Taken: time.Now(), Program: p.version, Index: applied, Term: term, Replaced: p.node.Replaced()}
	for _, m := range p.node.Members() {
		o.Members = append(o.Members, etcddb.Member{ID: uint64(m.ID), Name: m.Name, PeerURLs: []string{"https://" + m.PeerAddr}, ClientURLs: m.ClientURLs, Learner: !m.Voter})
	}
	for _, id := range p.node.Removed() {
		o.Removed = append(o.Removed, uint64(id))
	}
	return o
}

// caughtUp tells whether the local state is near that of the cluster.
func (p *Peer) caughtUp() bool {
	leader, _ := p.node.Leader()
	_, commit, applied := p.node.Indexes()
	return leader != 0 && commit > 0 && applied+1000 >= commit
}

// runBackups takes snapshots until ctx ends.
func (p *Peer) runBackups(ctx context.Context) error { return p.backups.Run(ctx) }
