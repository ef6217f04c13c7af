package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/env"
	"github.com/tripod-cluster/tripod/nodeagent/pods"
)

// failedStart is a start that did not come to be, with its waiting reason.
type failedStart struct {
	reason string
	err    error
}

func (f *failedStart) Error() string { return f.reason + ": " + f.err.Error() }
func (f *failedStart) Unwrap() error { return f.err }

func (w *worker) sandboxConfig(pod *v1.Pod, attempt int) *runtimeapi.PodSandboxConfig {
	dns, err := w.a.dnsConfig(pod)
	if err != nil {
		w.log.Warn("resolver configuration of the host not read", "err", err)
	}
	return cri.SandboxConfig(pod, cri.SandboxOptions{Attempt: attempt, CgroupParent: w.a.cgroups.Parent(pod.UID, cri.QOS(pod)),
		LogsRoot: w.a.cfg.PodLogsDir, DNS: dns, Domain: w.a.cfg.ClusterDomain})
}

// startContainer creates and starts a container and runs its postStart hook,
// aside.
func (w *worker) startContainer(ctx context.Context, in pods.Input, a pods.Action) {
	pod := in.Pod
	c := containerOf(pod, a.Container)
	var img *runtimeapi.Image
	w.lock(func() {
		img = w.images[a.Container]
		w.known.Starting[a.Container] = true
		delete(w.known.ImageReady, a.Container) // the next start checks anew
		delete(w.images, a.Container)
		if a.Crash != nil {
			w.known.Crashes[a.Container] = *a.Crash
		}
	})
	sb := in.ReadySandbox()
	w.aside(func() {
		id, err := w.start(ctx, pod, c, img, sb, in, a)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.known.Starting, a.Container)
		var f *failedStart
		switch {
		case ctx.Err() != nil:
		case err == nil:
			w.log.Info("container started", "container", a.Container, "id", id, "attempt", a.Attempt)
			delete(w.known.Holds, a.Container)
			delete(w.failures, pods.StartContainer)
			w.a.metrics.starts.WithLabelValues("started").Inc()
			if !w.born.IsZero() {
				w.a.metrics.toRunning.Observe(time.Since(w.born).Seconds())
				w.born = time.Time{}
			}
		case errors.As(err, &f):
			w.log.Warn("container not started", "container", a.Container, "err", err)
			w.a.metrics.starts.WithLabelValues("failed").Inc()
			n := w.failures[pods.StartContainer]
			w.failures[pods.StartContainer]++
			w.known.Holds[a.Container] = pods.Hold{Reason: f.reason, Message: f.err.Error(), Until: time.Now().Add(min(2*time.Second<<min(n, 5), 20*time.Second))}
		}
	})
}

func (w *worker) start(ctx context.Context, pod *v1.Pod, c *v1.Container, img *runtimeapi.Image, sb *pods.Sandbox, in pods.Input, a pods.Action) (string, error) {
	failed := func(reason, event string, err error) error {
		w.a.event(pod, v1.EventTypeWarning, "Failed", event+err.Error())
		return &failedStart{reason, err}
	}
	cfg, err := w.containerConfig(ctx, pod, c, img, sb, in, a.Attempt)
	if err != nil {
		return "", failed("CreateContainerConfigError", "Error: ", err)
	}
	if err := os.MkdirAll(filepath.Join(cri.LogDir(w.a.cfg.PodLogsDir, w.ref), c.Name), 0o755); err != nil {
		return "", failed("CreateContainerError", "Error: ", err)
	}
	id, err := w.a.runtime.CreateContainer(ctx, a.SandboxID, cfg, w.sandboxConfig(pod, int(sb.Attempt)))
	if err != nil {
		return "", failed("CreateContainerError", "Error: ", err)
	}
	w.a.event(pod, v1.EventTypeNormal, "Created", "Container created")
	if err := w.a.runtime.StartContainer(ctx, id); err != nil {
		return id, failed("RunContainerError", "Error: ", err)
	}
	w.a.event(pod, v1.EventTypeNormal, "Started", "Container started")
	w.a.linkLog(w.ref, c.Name, id, filepath.Join(cri.LogDir(w.a.cfg.PodLogsDir, w.ref), cfg.LogPath))
	if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
		if err := w.a.hook(ctx, pod, c, c.Lifecycle.PostStart, id, ipOf(pod, sb, w.a)); err != nil && ctx.Err() == nil {
			w.a.event(pod, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: "+err.Error())
			g := grace(pod)
			w.a.event(pod, v1.EventTypeNormal, "Killing", "FailedPostStartHook")
			if serr := w.a.runtime.StopContainer(ctx, id, int64(g/time.Second)); serr != nil {
				err = errors.Join(err, serr)
			}
			return id, &failedStart{"PostStartHookError", err}
		}
	}
	return id, nil
}

func ipOf(pod *v1.Pod, sb *pods.Sandbox, a *Agent) string {
	ips := []string(nil)
	if sb != nil {
		ips = sb.IPs
	}
	if pod.Spec.HostNetwork {
		ips = a.hostIPs()
	}
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}

func (w *worker) containerConfig(ctx context.Context, pod *v1.Pod, c *v1.Container, img *runtimeapi.Image, sb *pods.Sandbox, in pods.Input, attempt int) (*runtimeapi.ContainerConfig, error) {
	facts := w.a.facts(pod)
	facts.PodIPs = sb.IPs
	if pod.Spec.HostNetwork {
		facts.PodIPs = w.a.hostIPs()
	}
	if !w.a.servicesKnown() && (pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks) {
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	vars, err := env.Of(ctx, pod, c, facts)
	if err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for _, e := range vars {
		byName[e.Name] = e.Value
	}
	lookup := func(n string) (string, bool) { v, ok := byName[n]; return v, ok }
	mounts, err := w.a.volumes.Mounts(pod, c, lookup)
	if err != nil {
		return nil, err
	}
	own, err := w.ownMounts(pod, c, facts.PodIPs, mounts)
	if err != nil {
		return nil, err
	}
	o := cri.ContainerOptions{
		Attempt: attempt, Image: img, Command: env.ExpandAll(c.Command, lookup), Args: env.ExpandAll(c.Args, lookup),
		Env: vars, Mounts: append(mounts, own...), MemoryBytes: w.a.memoryCapacity(),
		SeccompRoot: filepath.Join(w.a.cfg.RootDir, "seccomp"), AppArmor: w.a.apparmor,
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == c.Name && e.TargetContainerName != "" {
			t := in.Newest(e.TargetContainerName)
			if t == nil {
				return nil, fmt.Errorf("unable to find target container %s", e.TargetContainerName)
			}
			o.TargetID = t.ID
		}
	}
	return cri.ContainerConfig(pod, c, o)
}

// ownMounts are the hosts file and the termination message, unless the
// container mounts something there itself.
func (w *worker) ownMounts(pod *v1.Pod, c *v1.Container, ips []string, mounts []*runtimeapi.Mount) ([]*runtimeapi.Mount, error) {
	taken := map[string]bool{}
	for _, m := range mounts {
		taken[m.ContainerPath] = true
	}
	var out []*runtimeapi.Mount
	if !taken["/etc/hosts"] {
		path, err := w.a.writeHosts(pod, ips)
		if err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: path, SelinuxRelabel: true})
	}
	if p := c.TerminationMessagePath; p != "" && !taken[p] {
		dir := filepath.Join(w.a.volumes.PodDir(pod.UID), "containers", c.Name)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, strconv.FormatUint(uint64(rand.Uint32()), 16))
		// Any user of the container may leave the message.
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			return nil, err
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: p, HostPath: path, SelinuxRelabel: true})
	}
	return out, nil
}
