package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// InitOptions are the flags of `controld init`.
type InitOptions struct {
	Config    peer.Config
	Name      string // overrides the configuration's
	Advertise string
	Cluster   peer.Cluster
	Out       io.Writer // progress
}

// Init makes this host the first peer of a new cluster and returns when it
// serves.
func Init(ctx context.Context, o InitOptions) error {
	c := o.Config
	svc, err := openService(ctx)
	if err != nil {
		return err
	}
	defer svc.close()
	id, err := peer.ReadIdentity(c.StateDir)
	switch {
	case err == nil && id.Phase == peer.PhaseInit && id.First:
		fmt.Fprintf(o.Out, "going on with an init of %s that did not finish\n", id.Name)
	case err == nil:
		return fmt.Errorf("this host is the peer %s of a cluster already: `controld status` shows it, `controld reset` removes it", id.Name)
	case !errors.Is(err, peer.NoIdentity):
		return err
	default:
		if err := preflight(c, svc.active(ctx)); err != nil {
			return err
		}
		addr, err := chooseAddress(first(o.Advertise, c.AdvertiseAddress), o.Cluster.VIP, "")
		if err != nil {
			return err
		}
		if err := o.Cluster.Validate(addr); err != nil {
			return err
		}
		if o.Cluster.VIP != "" {
			if err := vipFree(o.Cluster.VIP, c.APIPort); err != nil {
				return err
			}
		}
		if id, err = found(c, first(o.Name, c.Name), addr, o.Cluster); err != nil {
			return err
		}
	}
	if err := WriteAdminKubeconfig(c, id); err != nil {
		return err
	}
	if err := grantVIP(id.Cluster.VIP != ""); err != nil {
		return err
	}
	if err := own(c.StateDir); err != nil {
		return err
	}
	if err := svc.start(ctx, o.Out); err != nil {
		return err
	}
	if err := waitReady(ctx, o.Out, svc); err != nil {
		return err
	}
	return markMember(c, id)
}

// found writes the state of a new cluster's first peer; the identity comes last,
// so that an interrupted run leaves nothing that counts.
func found(c peer.Config, name string, addr netip.Addr, cl peer.Cluster) (peer.Identity, error) {
	var id peer.Identity
	if ents, err := os.ReadDir(filepath.Join(c.StateDir, "raft")); err == nil && len(ents) > 0 {
		return id, fmt.Errorf("%s holds the data of an earlier cluster, but no identity belongs to it: move it away if it is not needed, then run this again", filepath.Join(c.StateDir, "raft"))
	}
	dir := pki.Dir(filepath.Join(c.StateDir, "pki"))
	if err := os.RemoveAll(string(dir)); err != nil { // of a run that was interrupted
		return id, fmt.Errorf("clear %s: %w", dir, err)
	}
	b, err := pki.NewBundle(time.Now())
	if err != nil {
		return id, err
	}
	if err := b.Write(dir); err != nil {
		return id, err
	}
	rid, err := peer.NewID()
	if err != nil {
		return id, err
	}
	id = peer.Identity{ID: rid, Name: name, Address: addr.String(), First: true, Phase: peer.PhaseInit, Cluster: cl}
	return id, peer.WriteIdentity(c.StateDir, id)
}

// WriteAdminKubeconfig makes a kubeconfig for the operator on this host, towards
// the vip, or this peer where there is none.
func WriteAdminKubeconfig(c peer.Config, id peer.Identity) error {
	ca, err := pki.Dir(filepath.Join(c.StateDir, "pki")).Authority()
	if err != nil {
		return err
	}
	server := "https://" + net.JoinHostPort(first(id.Cluster.VIP, id.Address), strconv.Itoa(c.APIPort))
	k, err := pki.AdminKubeconfig(ca, server, "admin", time.Now())
	if err != nil {
		return err
	}
	return pki.WriteFile(peer.AdminKubeconfig, k, 0o600)
}

// vipFree refuses an address that somebody answers on.
func vipFree(addr string, port int) error {
	d := net.Dialer{Timeout: time.Second}
	for _, p := range []int{port, 22} {
		c, err := d.Dial("tcp", net.JoinHostPort(addr, strconv.Itoa(p)))
		if err == nil {
			c.Close()
			return fmt.Errorf("the virtual address %s is in use: something answers on its port %d; choose a free address of the network", addr, p)
		}
	}
	return nil
}

func markMember(c peer.Config, id peer.Identity) error {
	id.Phase = peer.PhaseMember
	if err := peer.WriteIdentity(c.StateDir, id); err != nil {
		return err
	}
	return own(c.StateDir)
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
