package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/mount-utils"

	"github.com/tripod-cluster/tripod/dataplane/modes"
	"github.com/tripod-cluster/tripod/nodeagent/bootstrap"
	"github.com/tripod-cluster/tripod/nodeagent/config"
	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/network"
)

func resetCommand(load func() (config.Config, error)) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "reset",
		Short: "Takes this host out of its cluster: stops its pods and removes their volumes, network, rules and certificates",
		Long: `Takes this host out of its cluster. Pods are stopped (drain the node first:
kubectl drain NODE), and their volumes, the pod network, the Service rules, the
certificates and noded's state are removed. Image archives in imagesDir and
containerd's images stay. The Node object is deleted on a peer: kubectl delete
node NODE.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return errors.New("noded reset must run as root: use sudo")
			}
			if !yes {
				fmt.Fprint(cmd.OutOrStdout(), "This stops every pod on this host and removes its node state. Go on? [y/N] ")
				line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
				if a := strings.ToLower(strings.TrimSpace(line)); a != "y" && a != "yes" {
					return errors.New("nothing was changed; --yes goes on without asking")
				}
			}
			return reset(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// reset does as much as it can and names all that failed; running it again goes on.
func reset(ctx context.Context, cfg config.Config, out io.Writer) error {
	name := "NODE"
	paths := bootstrap.Paths{Root: cfg.StateDir}
	if pair, err := bootstrap.LoadPair(paths.ClientCert()); err == nil {
		name, _ = bootstrap.NodeName(pair)
	}
	// A noded that runs on would undo the rest.
	if b, err := exec.CommandContext(ctx, "systemctl", "disable", "--now", "noded.service").CombinedOutput(); err != nil {
		if exec.CommandContext(ctx, "systemctl", "is-active", "--quiet", "noded.service").Run() == nil {
			return fmt.Errorf("stop noded: %w: %s", err, strings.TrimSpace(string(b)))
		}
	}
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
			fmt.Fprintf(out, "%s: failed: %v\n", what, err)
			return
		}
		fmt.Fprintf(out, "%s: done\n", what)
	}
	step("stop pods", stopPods(ctx, cfg.CRIEndpoint))
	step("unmount volumes", unmountBelow(filepath.Join(cfg.StateDir, "pods")))
	step("remove Service rules", cleanRules(ctx, cfg))
	step("remove the pod network", network.Reset(cfg.Network.CNIConfDir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the state of the node is kept, since not all could be removed: mend it and run `noded reset` again: %w", err)
	}
	step("remove pod logs", removeLogs())
	step("remove control groups", removeCgroups("/sys/fs/cgroup"))
	step("remove state", removeState(cfg))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(out, "this host is no node any more; on a peer: kubectl delete node %s\n", name)
	return nil
}

func stopPods(ctx context.Context, endpoint string) error {
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil // no runtime, no pods
		}
	}
	rt, err := cri.Dial(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	list, err := rt.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	var errs []error
	for _, sb := range list {
		if err := rt.StopPodSandbox(ctx, sb.Id); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, rt.RemovePodSandbox(ctx, sb.Id))
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything below dir, deepest first.
func unmountBelow(dir string) error {
	m := mount.New("")
	list, err := m.List()
	if err != nil {
		return err
	}
	var errs []error
	for i := len(list) - 1; i >= 0; i-- {
		if p := list[i].Path; strings.HasPrefix(p, dir+"/") {
			errs = append(errs, m.Unmount(p))
		}
	}
	return errors.Join(errs...)
}

func cleanRules(ctx context.Context, cfg config.Config) error {
	o := planeOptions(cfg, slog.Default())
	b, err := modes.Open(o)
	if err != nil {
		return err
	}
	errs := []error{b.Cleanup(ctx), b.Close()}
	others, err := modes.Others(o)
	errs = append(errs, err)
	for _, b := range others {
		errs = append(errs, b.Cleanup(ctx), b.Close())
	}
	return errors.Join(errs...)
}

// removeLogs empties the two directories that hold pods' logs and links to them.
func removeLogs() error {
	var errs []error
	for _, dir := range []string{"/var/log/pods", "/var/log/containers"} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		errs = append(errs, err)
		for _, e := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeCgroups removes what is left of the pods' control groups in every
// hierarchy; all are empty once the pods are stopped.
func removeCgroups(root string) error {
	var errs []error
	for _, pattern := range []string{"kubepods", "kubepods.slice", "*/kubepods", "*/kubepods.slice"} {
		tops, err := filepath.Glob(filepath.Join(root, pattern))
		errs = append(errs, err)
		for _, top := range tops {
			var dirs []string
			if err := filepath.WalkDir(top, func(p string, e os.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					dirs = append(dirs, p)
				}
				return nil
			}); err != nil {
				errs = append(errs, err)
			}
			for i := len(dirs) - 1; i >= 0; i-- {
				if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// removeState empties the state directory, but for the image archives.
func removeState(cfg config.Config) error {
	entries, err := os.ReadDir(cfg.StateDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		p := filepath.Join(cfg.StateDir, e.Name())
		if p == filepath.Clean(cfg.ImagesDir) {
			continue
		}
		errs = append(errs, os.RemoveAll(p))
	}
	return errors.Join(errs...)
}
