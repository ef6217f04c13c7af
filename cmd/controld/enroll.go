package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane/enroll"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// enrollTimeout is how long init and join wait for the cluster.
const enrollTimeout = 5 * time.Minute

func initCommand(f *flags) *cobra.Command {
	cl := peer.DefaultCluster()
	var name, advertise string
	c := &cobra.Command{
		Use: "init", Short: "Start a new cluster on this host", Args: cobra.NoArgs,
		Long: "init makes the certificate authorities of a new cluster, starts controld as its first\npeer, writes an admin kubeconfig and prints how other hosts join. If it is interrupted\nor fails, run it again.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), enrollTimeout)
			defer cancel()
			out := c.OutOrStdout()
			if err := enroll.Init(ctx, enroll.InitOptions{Config: cfg, Name: name, Advertise: advertise, Cluster: cl, Out: out}); err != nil {
				return err
			}
			fmt.Fprintf(out, "The cluster serves. Try:\n\n  export KUBECONFIG=%s\n  kubectl get nodes\n\n", peer.AdminKubeconfig)
			return printJoinLines(ctx, c, []pki.Role{pki.RolePeer, pki.RoleNode}, 0)
		},
	}
	fl := c.Flags()
	fl.StringVar(&name, "name", "", "name of this peer (default: the host name)")
	fl.StringVar(&advertise, "advertise", "", "address at which other hosts reach this one (default: chosen from the routes)")
	fl.StringVar(&cl.VIP, "vip", "", "virtual address of the API, a free address of this network, held by the leader")
	fl.StringVar(&cl.ServiceCIDR, "service-cidr", cl.ServiceCIDR, "network of Service addresses")
	fl.StringVar(&cl.ClusterCIDR, "cluster-cidr", cl.ClusterCIDR, "network of pod addresses; each node takes a /24 of it")
	fl.StringVar(&cl.NodePortRange, "node-ports", cl.NodePortRange, "range of node ports")
	return c
}

func joinCommand(f *flags) *cobra.Command {
	var name, advertise string
	var reset bool
	c := &cobra.Command{
		Use: "join TOKEN@HOST", Short: "Make this host one more peer of a cluster", Args: cobra.ExactArgs(1),
		Long: "join takes the line that `controld token` prints on a peer, receives the cluster's\nauthorities, starts controld, and returns when the new peer votes and serves. If it is\ninterrupted or fails, run it again.",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), enrollTimeout)
			defer cancel()
			out := c.OutOrStdout()
			if reset {
				if _, _, err := pki.ParseToken(args[0]); err != nil {
					return err
				}
				if err := enroll.Reset(ctx, cfg, out); err != nil {
					return err
				}
			}
			if err := enroll.Join(ctx, enroll.JoinOptions{Config: cfg, Line: args[0], Name: name, Advertise: advertise, Out: out}); err != nil {
				return err
			}
			fmt.Fprintf(out, "This host is a peer now. `controld status` shows the cluster.\n")
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of this peer (default: the host name)")
	c.Flags().StringVar(&advertise, "advertise", "", "address at which other hosts reach this one (default: the one towards HOST)")
	c.Flags().BoolVar(&reset, "reset", false, "first make this host forget the cluster that it belongs to, as `controld reset --yes`")
	return c
}

func tokenCommand() *cobra.Command {
	var role, output string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "token", Short: "Print how another host joins", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			roles := []pki.Role{pki.RolePeer, pki.RoleNode}
			if role != "" {
				roles = []pki.Role{pki.Role(role)}
			}
			switch output {
			case "":
				return printJoinLines(c.Context(), c, roles, ttl)
			case "token":
				if len(roles) != 1 {
					return errors.New("-o token needs --role peer or --role node")
				}
				t, err := peer.NewAdmin(peer.AdminSocket).Token(c.Context(), peer.TokenRequest{Role: roles[0], TTL: ttl})
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s@%s\n", t.Word, t.Host)
				return err
			}
			return fmt.Errorf("-o %s is not known (known: token)", output)
		},
	}
	c.Flags().StringVar(&role, "role", "", "peer or node (default: one line for each)")
	c.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is good for")
	c.Flags().StringVarP(&output, "output", "o", "", "token: only TOKEN@HOST")
	return c
}

func printJoinLines(ctx context.Context, c *cobra.Command, roles []pki.Role, ttl time.Duration) error {
	out := c.OutOrStdout()
	for _, r := range roles {
		t, err := peer.NewAdmin(peer.AdminSocket).Token(ctx, peer.TokenRequest{Role: r, TTL: ttl})
		if err != nil {
			return err
		}
		program, what := "noded", "To make a host a node, run on it"
		if r == pki.RolePeer {
			program, what = "controld", "To make a host a peer of the control plane, run on it"
		}
		if _, err := fmt.Fprintf(out, "%s, until %s:\n\n  %s join %s@%s\n\n", what, t.Expires.Local().Format("2006-01-02 15:04"), program, t.Word, t.Host); err != nil {
			return err
		}
	}
	return nil
}
