package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/nodeagent/bootstrap"
	"github.com/tripod-cluster/tripod/nodeagent/config"
	"github.com/tripod-cluster/tripod/pki"
)

func joinCommand(load func() (config.Config, error)) *cobra.Command {
	var force, noStart bool
	var name string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "join TOKEN@HOST[:PORT]",
		Short: "Makes this host a node of a cluster, and waits until it is Ready",
		Long: `Makes this host a node of the cluster that HOST, any of its peers, serves.
"controld token --role node" on a peer prints the argument.

Nothing on the host is changed before the cluster has given the node its
certificate. Afterwards the same command goes on where an earlier run stopped.
TOKEN@HOST may be "-": it is then read from standard input.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			line := args[0]
			if line == "-" {
				if _, err := fmt.Fscan(cmd.InOrStdin(), &line); err != nil {
					return fmt.Errorf("read the join line from standard input: %w", err)
				}
			}
			token, server, err := pki.ParseToken(line)
			if err != nil {
				return err
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			if name == "" {
				name = cfg.NodeName
			}
			if name == "" {
				h, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("read the host name: %w: give --node-name", err)
				}
				name = strings.ToLower(h)
			}
			if cfg.NodeName != "" && name != cfg.NodeName {
				return fmt.Errorf("--node-name %s contradicts nodeName %s in the configuration: give one of them", name, cfg.NodeName)
			}
			o := bootstrap.Options{
				Token: token, Server: server, NodeName: name, Root: cfg.StateDir, Force: force,
				CRIEndpoint: cfg.CRIEndpoint, CNIBinDirs: cfg.Network.CNIBinDirs, CNIConfDir: cfg.Network.CNIConfDir,
				SandboxImage: cfg.SandboxImage, CgroupDriver: cfg.CgroupDriver,
				APIAddress: apiAddress(cfg), HealthAddress: healthAddress(cfg), ReadyTimeout: wait, Out: cmd.OutOrStdout(),
			}
			if noStart {
				o.Unit = "-"
			}
			return bootstrap.Join(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&name, "node-name", "", "name of the node (default nodeName of the configuration, or the host's name)")
	f.BoolVar(&force, "force", false, "join again though this host is a node, or though its name seems taken")
	f.BoolVar(&noStart, "no-start", false, "prepare everything, but do not enable and start noded")
	f.DurationVar(&wait, "wait", 3*time.Minute, "how long to wait for the node to be Ready")
	return c
}

func apiAddress(c config.Config) string    { return fmt.Sprintf("%s:%d", bracket(c.Address), c.Port) }
func healthAddress(c config.Config) string { return fmt.Sprintf("127.0.0.1:%d", c.HealthPort) }

func bracket(a string) string {
	if strings.Contains(a, ":") {
		return "[" + a + "]"
	}
	return a
}
