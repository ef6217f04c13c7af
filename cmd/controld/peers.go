package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane/enroll"
	"github.com/tripod-cluster/tripod/controlplane/peer"
)

func peerCommand() *cobra.Command {
	c := &cobra.Command{Use: "peer", Short: "Change the peers of the cluster"}
	c.AddCommand(&cobra.Command{
		Use: "remove NAME|ID", Short: "Remove a peer for good", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := peer.NewAdmin(peer.AdminSocket).RemovePeer(c.Context(), args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s is removed; `controld reset` on that host clears it\n", args[0])
			return err
		},
	}, &cobra.Command{
		Use: "step-down", Short: "Hand the leadership to another peer", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return peer.NewAdmin(peer.AdminSocket).StepDown(c.Context()) },
	})
	return c
}

func resetCommand(f *flags) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "reset", Short: "Make this host forget its cluster", Args: cobra.NoArgs,
		Long: "reset stops controld on this host and deletes its copy of the cluster's data and\ncertificates. Remove the peer from the cluster first (`controld peer remove` on another\npeer), unless the cluster is to go altogether.",
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
