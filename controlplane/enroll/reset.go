package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tripod-cluster/tripod/controlplane/peer"
)

// Reset stops the peer on this host and deletes what it knows of its cluster:
// identity, certificates, data, the admin kubeconfig and the vip's drop-in. The
// identity goes first, so that an interrupted reset leaves no half peer. Snapshots
// stay, and are told of: they may be the last copy of the cluster.
func Reset(ctx context.Context, c peer.Config, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("this deletes files of the service: run it as root")
	}
	svc, err := openService(ctx)
	if err != nil {
		return err
	}
	defer svc.close()
	if err := svc.stop(ctx, out); err != nil {
		return err
	}
	for _, p := range []string{filepath.Join(c.StateDir, "peer.json"), peer.AdminKubeconfig, vipDropIn} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", p, err)
		}
	}
	for _, d := range []string{"raft", "pki", "audit", "tmp"} {
		p := filepath.Join(c.StateDir, d)
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("remove %s: %w", p, err)
		}
	}
	fmt.Fprintln(out, "this host belongs to no cluster any more")
	if kept, err := os.ReadDir(c.SnapshotDirectory); err == nil && len(kept) > 0 {
		fmt.Fprintf(out, "%d files in %s are kept: they hold the cluster's data, Secrets too; delete them when nobody needs them\n", len(kept), c.SnapshotDirectory)
	}
	return nil
}

// halt stops the unit.
func (s *service) halt(ctx context.Context, out io.Writer) error {
	done := make(chan string, 1)
	if _, err := s.conn.StopUnitContext(ctx, unit, "replace", done); err != nil {
		return fmt.Errorf("systemctl stop %s: %w", unit, err)
	}
	return wait(ctx, out, "systemd to stop "+unit, func(context.Context) (bool, string, error) {
		select {
		case r := <-done:
			if r != "done" {
				return false, "", fmt.Errorf("%s did not stop (%s): see `journalctl -u controld`", unit, r)
			}
			return true, "", nil
		default:
			return false, "", nil
		}
	})
}

// stop stops and disables the unit.
func (s *service) stop(ctx context.Context, out io.Writer) error {
	if err := s.halt(ctx, out); err != nil {
		return err
	}
	if _, err := s.conn.DisableUnitFilesContext(ctx, []string{unit}, false); err != nil {
		return fmt.Errorf("systemctl disable %s: %w", unit, err)
	}
	return nil
}
