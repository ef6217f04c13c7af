package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane/enroll"
	"github.com/tripod-cluster/tripod/controlplane/peer"
)

func memberCommand() *cobra.Command {
	c := &cobra.Command{Use: "member", Aliases: []string{"peer"}, Short: "List and change the peers of the cluster"}
	var output string
	list := &cobra.Command{
		Use: "list", Short: "List the peers", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			st, err := peer.NewAdmin(peer.AdminSocket).Status(c.Context())
			if err != nil {
				return err
			}
			return printer(c, output, st.Peers, func(w io.Writer) error { return printPeers(w, st.Peers) })
		},
	}
	list.Flags().StringVarP(&output, "output", "o", "", "json")
	c.AddCommand(list, &cobra.Command{
		Use: "remove NAME|ID", Short: "Remove a peer for good", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := peer.NewAdmin(peer.AdminSocket).RemovePeer(c.Context(), args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s is removed; `controld reset` on that host clears it\n", args[0])
			return err
		},
	}, replaceCommand(), &cobra.Command{
		Use: "step-down", Short: "Hand the leadership to another peer", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return peer.NewAdmin(peer.AdminSocket).StepDown(c.Context()) },
	})
	return c
}

// printPeers prints the table of peers.
func printPeers(w io.Writer, peers []peer.PeerStatus) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "PEER\tADDRESS\tROLE\tSTATE\tLAG\tVERSION")
	for _, p := range peers {
		role, ps := "learner", "up"
		if p.Voter {
			role = "voter"
		}
		if p.Leader {
			role = "leader"
		}
		if !p.Reachable {
			ps = "unreachable"
		}
		if p.Expected && !p.Reachable {
			role, ps = "expected", "not back"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n", p.Name, p.Address, role, ps, p.Lag, p.Version)
	}
	return t.Flush()
}

func replaceCommand() *cobra.Command {
	var with string
	var wait time.Duration
	c := &cobra.Command{
		Use: "replace OLD --with NEW", Short: "Exchange one peer for another", Args: cobra.ExactArgs(1),
		Long: "replace waits until the peer NEW has joined, votes and has caught up, and then removes the\npeer OLD for good. It refuses when the peers that stay would be too few to go on. If it is\ninterrupted, run it again: it goes on from where the cluster is. OLD and NEW are names, or IDs.",
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), wait)
			defer cancel()
			return enroll.Replace(ctx, peer.NewAdmin(peer.AdminSocket), args[0], with, c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&with, "with", "", "the peer that takes its place")
	c.Flags().DurationVar(&wait, "wait", 15*time.Minute, "how long to wait for the new peer")
	if err := c.MarkFlagRequired("with"); err != nil {
		panic(err) // the flag is there
	}
	return c
}

func resetCommand(f *flags) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "reset", Short: "Make this host forget its cluster", Args: cobra.NoArgs,
		Long: "reset stops controld on this host and deletes its copy of the cluster's data and\ncertificates; its snapshots stay. Remove the peer from the cluster first (`controld member\nremove` on another peer), unless the cluster is to go altogether.",
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes {
				return errors.New("this deletes the cluster's data on this host: run it with --yes")
			}
			cfg, err := f.load()
			if err != nil {
				return err
			}
			return enroll.Reset(c.Context(), cfg, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "really delete")
	return c
}
