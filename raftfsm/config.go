package raftfsm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tripod-cluster/tripod/store"
)

// Config is what a Node needs. Fields without a stated default are required.
type Config struct {
	// Dir holds everything this peer persists (mode 0700): its identity, the raft log,
	// term and vote, and snapshots. One process may use it at a time.
	Dir string
	// ID is checked against the persisted one; zero takes the persisted one, or makes
	// one. Use EnsureID to learn it before the certificate is made.
	ID PeerID
	// Name is the peer's name for people: not empty, unique in the cluster.
	Name string
	// Store is applied to by this Node alone.
	Store *store.Store

	// ListenPeer is the host:port to listen on for peers (usually :2380);
	// AdvertisePeer the host:port at which the other peers reach it.
	ListenPeer    string
	AdvertisePeer string
	// PeerURLs are told to clients of etcd's API in place of https://AdvertisePeer; usually empty.
	PeerURLs []string
	// TLS gives the configurations for incoming and outgoing peer connections. It is
	// asked for every connection, so renewed certificates take effect. Both need the
	// certificate, the server ClientCAs and the client RootCAs (the peer CA). The Node
	// sets verification, server name and protocols. The certificate of a peer carries
	// its ID as a DNS name.
	TLS func() (server, client *tls.Config, err error)

	// ClientURLs and APIURLs are told to the cluster: where this peer serves etcd
	// clients and the Kubernetes API. Version is this program's.
	ClientURLs []string
	APIURLs    []string
	Version    string

	// Logger defaults to slog.Default; Registerer to none.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// OnFatal is told, once, that this peer cannot go on (the disk hangs, state on disk
	// is damaged, it was removed from the cluster) and must end the process. The default
	// logs and exits with status 1.
	OnFatal func(error)

	// HeartbeatTimeout (default 500 ms) is how long a follower lives without contact to a
	// leader before it asks for an election; heartbeats are sent ten times as often.
	// ElectionTimeout (default 500 ms, not below HeartbeatTimeout) is how long a candidate
	// waits for votes. LeaderLeaseTimeout (default and maximum
	// HeartbeatTimeout) is how long a leader lives without a majority; nothing relies on it for correctness. With
	// the defaults writes resume one to one and a half seconds after the leader died.
	HeartbeatTimeout   time.Duration
	ElectionTimeout    time.Duration
	LeaderLeaseTimeout time.Duration

	// RequestTimeout (default 7 s, as etcd's) bounds Propose and ReadIndex whose context
	// has no earlier deadline.
	RequestTimeout time.Duration

	// LeaseCheckpointInterval is how often the leader records what is left of leases that run longer than
	// that, so that a change of leadership does not start their time anew. 0, the default and etcd's, is
	// never; etcd's interval where it is on is 5 minutes. A record can make a renewal wait for the log.
	LeaseCheckpointInterval time.Duration

	// A snapshot is taken when SnapshotEntries (default 20000) entries or SnapshotBytes
	// (default 64 MiB, and at least the size of the last snapshot) of log were written since the last one; checked every
	// SnapshotInterval (default 5 s). About TrailingBytes (default 32 MiB) of log stay behind it
	// for followers that lag.
	SnapshotEntries  uint64
	SnapshotBytes    int64
	SnapshotInterval time.Duration
	TrailingBytes    int64

	// MinFreeBytes (default 96 MiB) of free disk space below which a leader refuses
	// proposals, so that the log never runs into a full disk.
	MinFreeBytes int64
	// DiskSlow (default 1 s) is when a call to the disk is reported; DiskStall (default
	// 2 s) when a leader stops its heartbeats so that others elect; DiskDeadline (default
	// 30 s) when OnFatal is called.
	DiskSlow, DiskStall, DiskDeadline time.Duration

	// PromoteLag (default 1000 entries) is how far a peer's applied index may be behind the
	// commit index when it is made a voter.
	PromoteLag uint64

	// testing hooks, see faults.go
	faults faults
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (c *Config) complete() error {
	switch {
	case c.Dir == "":
		return errors.New("raftfsm: Config.Dir is empty")
	case c.Name == "":
		return errors.New("raftfsm: Config.Name is empty")
	case c.Store == nil:
		return errors.New("raftfsm: Config.Store is nil")
	case c.TLS == nil:
		return errors.New("raftfsm: Config.TLS is nil: peers speak mutual TLS only")
	}
	if _, _, err := net.SplitHostPort(c.ListenPeer); err != nil {
		return fmt.Errorf("raftfsm: peer listen address %q is not host:port: %w", c.ListenPeer, err)
	}
	if host, port, err := net.SplitHostPort(c.AdvertisePeer); err != nil || host == "" || port == "" || port == "0" {
		return fmt.Errorf("raftfsm: advertised peer address %q is not host:port with both parts set", c.AdvertisePeer)
	}
	orDefault(&c.HeartbeatTimeout, 500*time.Millisecond)
	orDefault(&c.ElectionTimeout, c.HeartbeatTimeout)
	orDefault(&c.LeaderLeaseTimeout, c.HeartbeatTimeout)
	orDefault(&c.RequestTimeout, 7*time.Second)
	orDefault(&c.SnapshotEntries, 20000)
	orDefault(&c.SnapshotBytes, 64<<20)
	orDefault(&c.SnapshotInterval, 5*time.Second)
	orDefault(&c.TrailingBytes, 32<<20)
	orDefault(&c.MinFreeBytes, 96<<20)
	orDefault(&c.DiskSlow, time.Second)
	orDefault(&c.DiskStall, 2*time.Second)
	orDefault(&c.DiskDeadline, 30*time.Second)
	orDefault(&c.PromoteLag, 1000)
	if c.LeaderLeaseTimeout > c.HeartbeatTimeout || c.ElectionTimeout < c.HeartbeatTimeout {
		return fmt.Errorf("raftfsm: timeouts must keep lease (%v) <= heartbeat (%v) <= election (%v)", c.LeaderLeaseTimeout, c.HeartbeatTimeout, c.ElectionTimeout)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.OnFatal == nil {
		log := c.Logger
		c.OnFatal = func(err error) {
			log.Error("this peer cannot go on", "error", err)
			os.Exit(1)
		}
	}
	return nil
}
