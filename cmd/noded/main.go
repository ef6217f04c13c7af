// Command noded is Tripod's node agent: it runs the pods of one host with
// containerd, makes the pod network and programs the Service rules. See noded(8).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"

	"github.com/tripod-cluster/tripod/nodeagent/config"
)

// exitCode is an error that only sets the exit status: what it means is printed already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "noded:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "noded",
		Short:         "Runs the pods of this host as a node of a Tripod cluster",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	path := root.PersistentFlags().String("config", config.Path, "configuration file")
	// The file at the default path may be missing: every key has a default.
	load := func() (config.Config, error) { return config.Load(*path, *path == config.Path) }
	root.AddCommand(runCommand(load), joinCommand(load), resetCommand(load), statusCommand(load), configCommand(load), versionCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Prints the version", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		v := version.Get()
		fmt.Fprintf(cmd.OutOrStdout(), "noded %s (%s, %s)\n", v.GitVersion, v.GoVersion, v.Platform)
		return nil
	}}
}

func configCommand(load func() (config.Config, error)) *cobra.Command {
	var defaults bool
	c := &cobra.Command{Use: "config", Short: "Prints the configuration in force (file over defaults)", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := config.Default(), error(nil)
		if !defaults {
			c, err = load()
		}
		if err != nil {
			return err
		}
		b, err := c.YAML()
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(b)
		return err
	}}
	c.Flags().BoolVar(&defaults, "defaults", false, "print the defaults, not what the file changes")
	return c
}
