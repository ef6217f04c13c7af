package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
)

// Revision says how the revision of the store goes on in a new cluster.
type Revision struct {
	// Bump is added to it, so that no client sees it go back.
	Bump int64
	// MarkCompacted forgets the history before it, so that watches and caches of
	// clients start anew.
	MarkCompacted bool
}

// RestoreOptions are the arguments of `controld snapshot restore`.
type RestoreOptions struct {
	Config        peer.Config
	Path          string // of the snapshot
	SkipHashCheck bool
	Revision      Revision
	// Yes does it; else it is only said what would be done.
	Yes bool
	Out io.Writer
}

// ErrNotConfirmed is returned when nothing was changed as nobody confirmed it.
var ErrNotConfirmed = errors.New("nothing was changed")

// Restore makes the peer on this host the first of a new cluster that holds what a
// snapshot does, and returns when it serves. The other peers of the cluster that is
// replaced follow by themselves when the new one meets them. The snapshot is read
// and checked before anything is touched.
func Restore(ctx context.Context, o RestoreOptions) error {
	id, err := asPeer(o.Config)
	if err != nil {
		return err
	}
	s, info, err := etcddb.Read(o.Path, etcddb.Options{SkipHashCheck: o.SkipHashCheck})
	if err != nil {
		return err
	}
	if err := s.Rebase(o.Revision.Bump, o.Revision.MarkCompacted); err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "%s holds %d keys at revision %d", o.Path, info.Keys, info.Revision)
	if !info.Origin.Taken.IsZero() {
		fmt.Fprintf(o.Out, ", taken at %s", info.Origin.Taken.UTC().Format("2006-01-02 15:04:05Z"))
	}
	fmt.Fprintf(o.Out, ".\nThe cluster of this host is replaced by a new one that holds this, at revision %d, with %s as its first peer.\nEverything written since the snapshot is lost. The other peers are told, put their state aside and follow.\n", s.Revision(), id.Name)
	if info.LeasesMissing > 0 {
		fmt.Fprintf(o.Out, "%d keys name a lease that is not in the snapshot; they lose it.\n", info.LeasesMissing)
	}
	if !o.Yes {
		return fmt.Errorf("%w: run it with --yes", ErrNotConfirmed)
	}
	svc, err := openService(ctx)
	if err != nil {
		return err
	}
	defer svc.close()
	if err := svc.halt(ctx, o.Out); err != nil {
		return err
	}
	old, err := raftfsm.ReadOffline(raftDir(o.Config), nil)
	if err != nil {
		if !errors.Is(err, raftfsm.ErrNoState) {
			fmt.Fprintf(o.Out, "the state of this host cannot be read, and is put aside (%v); who the other peers were is taken from the snapshot\n", err)
		}
		old = fromOrigin(info.Origin)
	}
	return begin(ctx, svc, o.Config, id, old, s, o.Out)
}

// RecoverOptions are the arguments of `controld recover`.
type RecoverOptions struct {
	Config         peer.Config
	Revision       Revision
	AcceptDataLoss bool
	Out            io.Writer
}

// Recover makes the peer on this host, which has lost the majority of its cluster,
// the first of a new cluster that holds what this peer does.
func Recover(ctx context.Context, o RecoverOptions) error {
	id, err := asPeer(o.Config)
	if err != nil {
		return err
	}
	svc, err := openService(ctx)
	if err != nil {
		return err
	}
	defer svc.close()
	running := svc.active(ctx)
	if running {
		st, err := peer.NewAdmin(peer.AdminSocket).Status(ctx)
		if err == nil && st.Leader != "" {
			return fmt.Errorf("the cluster has a leader, %s: there is nothing to recover; `controld member replace` exchanges a peer that is gone", st.Leader)
		}
		if err := svc.halt(ctx, o.Out); err != nil {
			return err
		}
	}
	// again puts back what was changed to look.
	again := func(err error) error {
		if running {
			return errors.Join(err, own(o.Config.StateDir), svc.start(ctx, o.Out))
		}
		return errors.Join(err, own(o.Config.StateDir))
	}
	old, err := raftfsm.ReadOffline(raftDir(o.Config), nil)
	if err != nil {
		return again(err)
	}
	fmt.Fprint(o.Out, RecoverNotice(old))
	if !o.AcceptDataLoss {
		return again(fmt.Errorf("%w: look at the other peers that are left, then run it with --accept-data-loss on the best of them", ErrNotConfirmed))
	}
	if err := old.Store.Rebase(o.Revision.Bump, o.Revision.MarkCompacted); err != nil {
		return again(err)
	}
	return begin(ctx, svc, o.Config, id, old, old.Store, o.Out)
}

// RecoverNotice says what a recovery from this state may lose.
func RecoverNotice(o *raftfsm.Offline) string {
	var b strings.Builder
	fmt.Fprintf(&b, "This peer holds revision %d; its last entry is %d of term %d.\nThe members are:\n", o.Store.Revision(), o.LastIndex, o.LastTerm)
	for _, m := range o.Members {
		what := "votes"
		if !m.Voter {
			what = "does not vote"
		}
		if m.ID == o.ID {
			what += ", this peer"
		}
		fmt.Fprintf(&b, "  %s (%s) %s\n", m.Name, m.PeerAddr, what)
	}
	fmt.Fprintf(&b, "Writes that the others acknowledged and this peer never got are lost for good. Run\n`controld recover` on every peer that is left, and recover the one whose last entry has\nthe greatest term, and of those the greatest number. The other peers, when they come back,\nput their state aside and follow this one.\n")
	return b.String()
}

// asPeer returns the identity of this host.
func asPeer(c peer.Config) (peer.Identity, error) {
	if os.Geteuid() != 0 {
		return peer.Identity{}, errors.New("this replaces the data of the service: run it as root")
	}
	id, err := peer.ReadIdentity(c.StateDir)
	if errors.Is(err, peer.NoIdentity) {
		return id, errors.New("this host is not a peer of any cluster: run `controld init` first, or put /var/lib/controld/pki and peer.json of a former peer back, then run this again")
	}
	return id, err
}

func raftDir(c peer.Config) string { return filepath.Join(c.StateDir, "raft") }

// fromOrigin is what a snapshot says of the cluster that it was taken from. An etcd
// server's is not one whose peers could follow.
func fromOrigin(o etcddb.Origin) *raftfsm.Offline {
	out := &raftfsm.Offline{Cluster: o.Cluster, Replaced: o.Replaced}
	if o.Cluster == 0 {
		return out
	}
	for _, m := range o.Members {
		if len(m.PeerURLs) == 0 {
			continue
		}
		if u, err := url.Parse(m.PeerURLs[0]); err == nil && u.Host != "" {
			out.Members = append(out.Members, raftfsm.Member{ID: raftfsm.PeerID(m.ID), Name: m.Name, PeerAddr: u.Host, ClientURLs: m.ClientURLs})
		}
	}
	for _, id := range o.Removed {
		out.Removed = append(out.Removed, raftfsm.PeerID(id))
	}
	return out
}

// newCluster is the cluster that takes the place of old, with this peer as its first.
func newCluster(c peer.Config, id peer.Identity, old *raftfsm.Offline) (raftfsm.NewCluster, error) {
	rid, err := raftfsm.ParsePeerID(id.ID)
	if err != nil {
		return raftfsm.NewCluster{}, fmt.Errorf("identity: %w", err)
	}
	at := func(port int) string { return net.JoinHostPort(id.Address, strconv.Itoa(port)) }
	n := raftfsm.NewCluster{
		Self:    raftfsm.Member{ID: rid, Name: id.Name, PeerAddr: at(c.PeerPort), ClientURLs: []string{"https://" + at(c.EtcdPort)}, APIURLs: []string{"https://" + at(c.APIPort)}},
		Removed: old.Removed,
	}
	if old.Cluster != 0 {
		n.Replaced = append([]uint64{old.Cluster}, old.Replaced...)
	}
	for _, m := range slices.Concat(old.Members, old.Expected) {
		known := slices.ContainsFunc(n.Expected, func(o raftfsm.Member) bool { return o.ID == m.ID })
		if !known && m.ID != rid && m.Name != id.Name && m.PeerAddr != n.Self.PeerAddr && m.Name != "" && !slices.Contains(old.Removed, m.ID) {
			n.Expected = append(n.Expected, m)
		}
	}
	return n, nil
}

// begin writes the new cluster's state and starts the peer.
func begin(ctx context.Context, svc *service, c peer.Config, id peer.Identity, old *raftfsm.Offline, s *store.Store, out io.Writer) error {
	n, err := newCluster(c, id, old)
	if err != nil {
		return err
	}
	sn := s.Snapshot()
	defer sn.Close()
	n.State = sn
	cluster, err := raftfsm.BeginCluster(raftDir(c), n, nil)
	if err != nil {
		return err
	}
	if err := own(c.StateDir); err != nil {
		return err
	}
	if err := svc.start(ctx, out); err != nil {
		return err
	}
	if err := waitReady(ctx, out, svc); err != nil {
		return err
	}
	fmt.Fprintf(out, "The new cluster, %016x, serves on this host.\n", cluster)
	for _, m := range n.Expected {
		fmt.Fprintf(out, "%s (%s) follows by itself when it is reached.\n", m.Name, m.PeerAddr)
	}
	if len(n.Expected) == 0 {
		fmt.Fprintln(out, "No other peer is known: on each of their hosts run `controld join --reset` with a token of this one.")
	}
	fmt.Fprintln(out, "`controld status` shows the peers. A host that does not come back: `controld member remove`.\nThe state that was replaced is kept in /var/lib/controld/raft/replaced-*; delete it when it is not needed.")
	return nil
}
