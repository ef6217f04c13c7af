package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/scheduling/profile"
	"github.com/tripod-cluster/tripod/scheduling/standalone"
)

func schedulerCommand() *cobra.Command {
	var kubeconfig, file string
	c := &cobra.Command{
		Use: "scheduler", Short: "Run a second scheduler", Args: cobra.NoArgs,
		Long: "scheduler runs the scheduler alone, against the API that the kubeconfig names: for pods whose\nschedulerName is one of the profiles of the scheduler configuration. Several with one\nleaderElection.resourceName elect one of them by a Lease.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := profile.LoadFile(file)
			if err != nil {
				return err
			}
			if kubeconfig == "" {
				kubeconfig = cfg.Source.ClientConnection.Kubeconfig
			}
			if kubeconfig == "" {
				return fmt.Errorf("--kubeconfig is required where clientConnection.kubeconfig is not set in %s", file)
			}
			return standalone.Run(c.Context(), standalone.Options{Kubeconfig: kubeconfig, Profiles: cfg, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API")
	c.Flags().StringVar(&file, "scheduler-config", "", "KubeSchedulerConfiguration file")
	if err := c.MarkFlagRequired("scheduler-config"); err != nil {
		panic(err) // the flag is defined above
	}
	return c
}
