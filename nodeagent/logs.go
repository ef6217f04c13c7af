package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/images"
)

const (
	houseEvery  = 10 * time.Second
	imagesEvery = 5 * time.Minute

	maxLogSize  = 10 << 20 // bytes at which a container's log is rotated
	maxLogFiles = 5        // of one container instance, the one being written included
)

// keepHouse rotates logs and removes images nobody uses, until ctx ends.
func (a *Agent) keepHouse(ctx context.Context) {
	t := time.NewTicker(houseEvery)
	defer t.Stop()
	var collected time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := a.rotateLogs(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.Warn("container logs not rotated", "err", err)
		}
		if time.Since(collected) < imagesEvery {
			continue
		}
		collected = time.Now()
		list, err := a.runtime.ListContainers(ctx, nil)
		if err != nil {
			continue
		}
		keep := a.importer.Names()
		keep[a.cfg.SandboxImage] = true
		n, err := images.Collect(ctx, a.runtime, list, keep)
		if err != nil && ctx.Err() == nil {
			a.cfg.Logger.Warn("unused images not removed", "err", err)
		}
		if n > 0 {
			a.cfg.Logger.Info("unused images removed", "count", n)
		}
	}
}

func (a *Agent) rotateLogs(ctx context.Context) error {
	list, err := a.runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, c := range list {
		ref, ok := cri.RefOf(c.Labels)
		if !ok || ref.Namespace == "" {
			continue
		}
		path := filepath.Join(cri.LogDir(a.cfg.PodLogsDir, ref), c.GetMetadata().GetName(), fmt.Sprintf("%d.log", c.GetMetadata().GetAttempt()))
		fi, err := os.Stat(path)
		if err != nil || fi.Size() < maxLogSize {
			continue
		}
		if err := a.rotate(ctx, path, c.Id); err != nil {
			errs = append(errs, fmt.Errorf("container %s of pod %s/%s: %w", c.GetMetadata().GetName(), ref.Namespace, ref.Name, err))
		}
	}
	return errors.Join(errs...)
}

// rotate puts a log aside under a name with the time and has the runtime begin
// a new one. If the runtime does not, the old one is put back.
func (a *Agent) rotate(ctx context.Context, path, id string) error {
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return err
	}
	slices.SortFunc(old, func(x, y string) int { return cmp.Compare(y, x) }) // the newest first: names are times
	for _, f := range old[min(len(old), maxLogFiles-2):] {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	aside := path + "." + time.Now().UTC().Format("20060102-150405.000")
	if err := os.Rename(path, aside); err != nil {
		return err
	}
	if err := a.runtime.ReopenContainerLog(ctx, id); err != nil {
		return errors.Join(fmt.Errorf("reopen log: %w", err), os.Rename(aside, path))
	}
	return nil
}

// linkName is the name of a container's log in LogLinksDir, as log collectors
// expect it.
func (a *Agent) linkName(r cri.Ref, container, id string) string {
	base := r.Name + "_" + r.Namespace + "_" + container + "-" + id
	if len(base) > 251 {
		base = base[:251]
	}
	return filepath.Join(a.cfg.LogLinksDir, base+".log")
}

func (a *Agent) linkLog(r cri.Ref, container, id, target string) {
	name := a.linkName(r, container, id)
	err := os.MkdirAll(a.cfg.LogLinksDir, 0o755)
	if err == nil {
		err = os.Symlink(target, name)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		a.cfg.Logger.Warn("log not linked", "path", name, "err", err)
	}
}

func (a *Agent) unlinkLog(r cri.Ref, container, id string) {
	if err := os.Remove(a.linkName(r, container, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.cfg.Logger.Warn("link of a log left", "err", err)
	}
}

// unlinkLogs removes what links into a pod's log directory.
func (a *Agent) unlinkLogs(r cri.Ref) {
	if r.Name == "" {
		return
	}
	links, _ := filepath.Glob(filepath.Join(a.cfg.LogLinksDir, r.Name+"_"+r.Namespace+"_*.log"))
	for _, l := range links {
		target, err := os.Readlink(l)
		if err == nil && strings.HasPrefix(target, cri.LogDir(a.cfg.PodLogsDir, r)+"/") {
			_ = os.Remove(l) // the next pod of the name goes over it again
		}
	}
}
