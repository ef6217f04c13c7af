// Command controld is one peer of a Tripod control plane: API server, store,
// scheduler and controllers in one process, and the operator's commands for it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane/peer"
)

// version is set at link time.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "controld: "+err.Error())
		os.Exit(exitCode(err))
	}
}

// flags that every command takes.
type flags struct{ config string }

func (f *flags) load() (peer.Config, error) { return peer.LoadConfig(f.config) }

func root() *cobra.Command {
	f := &flags{}
	c := &cobra.Command{
		Use:           "controld",
		Short:         "One peer of a Tripod control plane",
		Long:          "controld is one of the peers that hold a Tripod cluster: API server, store, scheduler\nand controllers in one process. `controld init` starts a cluster on this host,\n`controld join TOKEN@HOST` makes this host one more peer, `controld status` shows it.",
		SilenceErrors: true, SilenceUsage: true,
	}
	c.PersistentFlags().StringVar(&f.config, "config", peer.DefaultConfigPath, "configuration file")
	c.AddCommand(initCommand(f), joinCommand(f), tokenCommand(), statusCommand(), whyCommand(), memberCommand(), snapshotCommand(f), recoverCommand(f), resetCommand(f), runCommand(f), schedulerCommand(), versionCommand())
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version)
			return err
		},
	}
}
