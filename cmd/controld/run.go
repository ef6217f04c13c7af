package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tripod-cluster/tripod/controlplane"
	"github.com/tripod-cluster/tripod/internal/heap"
)

func runCommand(f *flags) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Run the peer (systemd does)", Args: cobra.NoArgs, Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			var level slog.LevelVar
			set := func(s string) {
				var l slog.Level
				if err := l.UnmarshalText([]byte(s)); err == nil {
					level.Set(l)
				}
			}
			set(cfg.LogLevel)
			// The journal stamps the time.
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &level, ReplaceAttr: func(g []string, a slog.Attr) slog.Attr {
				if len(g) == 0 && a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}}))
			slog.SetDefault(log)
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP)
			go func() {
				for range hup {
					n, err := f.load()
					if err != nil {
						log.Error("configuration not reloaded", "error", err)
						continue
					}
					set(n.LogLevel)
					log.Info("log level reloaded; other settings take effect at the next start", "level", n.LogLevel)
				}
			}()
			heap.Bound()
			if err := controlplane.Run(c.Context(), cfg, controlplane.Options{Version: version, Log: log}); err != nil {
				return fmt.Errorf("run: %w", err)
			}
			return nil
		},
	}
}
