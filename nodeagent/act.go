package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/images"
	"github.com/tripod-cluster/tripod/nodeagent/pods"
)

// act carries out one transition, or begins one that takes long. An error is
// one the step cannot take into account: the worker waits and looks again.
func (w *worker) act(ctx context.Context, in pods.Input, a pods.Action) error {
	switch a.Kind {
	case pods.Prepare:
		w.prepare(ctx, in.Pod)
	case pods.CreateSandbox:
		w.createSandbox(ctx, in.Pod, a)
	case pods.PullImage:
		w.pullImage(ctx, in.Pod, a)
	case pods.StartContainer:
		w.startContainer(ctx, in, a)
	case pods.StopContainers:
		for _, s := range a.Stops {
			w.stopContainer(ctx, in, s)
		}
	case pods.StopSandbox:
		if err := w.a.runtime.StopPodSandbox(ctx, a.SandboxID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("stop sandbox %s: %w", a.SandboxID, err)
		}
		w.lock(func() { w.known.StoppedBoxes[a.SandboxID] = true })
	case pods.RemoveContainers:
		for _, id := range a.IDs {
			if err := w.removeContainer(ctx, in, id); err != nil {
				return err
			}
		}
	case pods.RemoveSandbox:
		if err := w.a.runtime.RemovePodSandbox(ctx, a.SandboxID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", a.SandboxID, err)
		}
	case pods.Cleanup:
		return w.cleanup()
	case pods.Delete:
		if err := w.a.status.Delete(ctx, in.Pod); err != nil {
			w.log.Warn("pod not deleted from the API, will try again", "err", err)
			d := w.backoff(pods.Delete, 10*time.Second)
			w.lock(func() { w.known.DeleteAfter = time.Now().Add(d) })
			return nil
		}
		w.succeeded(pods.Delete)
		// The watch tells when it is gone (finalizers may hold it); ask again if not.
		w.lock(func() { w.known.DeleteAfter = time.Now().Add(5 * time.Second) })
	default:
		return fmt.Errorf("transition %s has no action", a.Kind)
	}
	return nil
}

func (w *worker) prepare(ctx context.Context, pod *v1.Pod) {
	err := os.MkdirAll(cri.LogDir(w.a.cfg.PodLogsDir, w.ref), 0o755)
	if err == nil {
		err = w.a.cgroups.Ensure(pod.UID, cri.QOS(pod), cri.PodLimits(pod))
		if err != nil {
			w.a.event(pod, v1.EventTypeWarning, "FailedCreatePodContainer", "unable to ensure pod container exists: "+err.Error())
		}
	}
	if err == nil {
		if err = w.a.volumes.Prepare(ctx, pod); err != nil {
			w.a.event(pod, v1.EventTypeWarning, "FailedMount", err.Error())
		}
	}
	if err != nil {
		w.log.Warn("pod not prepared, will try again", "err", err)
		d := w.backoff(pods.Prepare, 15*time.Second)
		w.lock(func() { w.known.PrepareAfter = time.Now().Add(d) })
		return
	}
	w.succeeded(pods.Prepare)
	w.lock(func() { w.known.Prepared, w.known.Cleaned, w.refreshed = true, false, time.Now() })
}

func (w *worker) createSandbox(ctx context.Context, pod *v1.Pod, a pods.Action) {
	id, err := w.runSandbox(ctx, pod, a.Attempt)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		w.log.Warn("sandbox not created, will try again", "err", err)
		d := w.backoff(pods.CreateSandbox, 20*time.Second)
		w.lock(func() {
			w.known.SandboxAfter = time.Now().Add(d)
			w.known.SandboxFailed++
		})
		return
	}
	w.succeeded(pods.CreateSandbox)
	w.log.Info("sandbox created", "sandbox", id, "attempt", a.Attempt)
	w.lock(func() { w.known.SandboxFailed, w.known.Cleaned = 0, false })
}

func (w *worker) runSandbox(ctx context.Context, pod *v1.Pod, attempt int) (string, error) {
	if n := w.a.cfg.Network; n != nil && !pod.Spec.HostNetwork {
		if err := n.Ready(); err != nil {
			w.a.event(pod, v1.EventTypeWarning, "NetworkNotReady", "network is not ready: "+err.Error())
			return "", fmt.Errorf("network is not ready: %w", err)
		}
	}
	handler, err := w.a.runtimeHandler(ctx, pod)
	if err != nil {
		w.a.event(pod, v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		return "", err
	}
	id, err := w.a.runtime.RunPodSandbox(ctx, w.sandboxConfig(pod, attempt), handler)
	if err != nil {
		w.a.event(pod, v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		return "", fmt.Errorf("create sandbox: %w", err)
	}
	return id, nil
}

// runtimeHandler is the handler of the pod's runtime class.
func (a *Agent) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	rc, err := a.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, *pod.Spec.RuntimeClassName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("runtime class %s: %w", *pod.Spec.RuntimeClassName, err)
	}
	return rc.Handler, nil
}

// pullImage sees, aside, that a container's image is there.
func (w *worker) pullImage(ctx context.Context, pod *v1.Pod, a pods.Action) {
	c := containerOf(pod, a.Container)
	w.lock(func() { w.known.Pulling[a.Container] = true })
	w.aside(func() {
		began := time.Now()
		secrets := w.pullSecrets(ctx, pod)
		out, err := images.Ensure(ctx, w.a.runtime, c, secrets, w.sandboxConfig(pod, 0), func() {
			w.a.event(pod, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.known.Pulling, a.Container)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			msg := fmt.Sprintf("Container image %q already present on machine", c.Image)
			if !out.Present {
				msg = fmt.Sprintf("Successfully pulled image %q in %s. Image size: %d bytes.", c.Image, time.Since(began).Round(time.Millisecond), out.Image.GetSize())
			}
			w.a.event(pod, v1.EventTypeNormal, "Pulled", msg)
			w.known.ImageReady[a.Container] = true
			w.images[a.Container] = out.Image
			if h := w.known.Holds[a.Container]; imageReason(h.Reason) {
				delete(w.known.Holds, a.Container)
				delete(w.failures, pods.PullImage)
			}
			return
		}
		w.holdImage(pod, c, err)
	})
}

func imageReason(r string) bool {
	switch r {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "InvalidImageName":
		return true
	}
	return false
}

// holdImage notes that a container's image is not there. w.mu is held.
func (w *worker) holdImage(pod *v1.Pod, c *v1.Container, err error) {
	h := pods.Hold{Message: err.Error()}
	switch {
	case errors.Is(err, images.ErrNeverPull):
		h.Reason, h.Until = "ErrImageNeverPull", time.Now().Add(10*time.Second)
		w.a.event(pod, v1.EventTypeWarning, "ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
		w.a.event(pod, v1.EventTypeWarning, "Failed", "Error: ErrImageNeverPull")
	case errors.Is(err, images.ErrInvalidName):
		h.Reason, h.Until = "InvalidImageName", time.Now().Add(30*time.Second)
		w.a.event(pod, v1.EventTypeWarning, "InspectFailed", fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name", c.Image))
	case errors.Is(err, images.ErrInspect):
		h.Reason, h.Until = "ImageInspectError", time.Now().Add(5*time.Second)
		w.a.event(pod, v1.EventTypeWarning, "Failed", "Error: ImageInspectError")
	default:
		n := w.failures[pods.PullImage]
		w.failures[pods.PullImage]++
		delay := min(10*time.Second<<min(n, 5), 5*time.Minute)
		h.Reason, h.Until = "ErrImagePull", time.Now().Add(delay)
		w.a.event(pod, v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", c.Image, err))
		w.a.event(pod, v1.EventTypeWarning, "Failed", "Error: ErrImagePull")
		// The attempt is told first, then that it waits for the next one.
		time.AfterFunc(2*time.Second, func() {
			w.mu.Lock()
			cur, ok := w.known.Holds[c.Name]
			if ok && cur.Reason == "ErrImagePull" && cur.Until.Equal(h.Until) {
				cur.Reason, cur.Message = "ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q: %s", c.Image, h.Message)
				w.known.Holds[c.Name] = cur
			}
			w.mu.Unlock()
			w.a.event(pod, v1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
			w.poke()
		})
	}
	w.known.Holds[c.Name] = h
}

// imagesArrived lets containers that wait for an image look again at once.
func (w *worker) imagesArrived() {
	w.mu.Lock()
	woken := false
	for name, h := range w.known.Holds {
		if imageReason(h.Reason) {
			h.Until = time.Time{}
			w.known.Holds[name] = h
			woken = true
		}
	}
	w.mu.Unlock()
	if woken {
		w.poke()
	}
}

func (w *worker) pullSecrets(ctx context.Context, pod *v1.Pod) []*v1.Secret {
	var out []*v1.Secret
	for _, r := range pod.Spec.ImagePullSecrets {
		s, err := w.a.objects.Secret(ctx, pod.Namespace, r.Name)
		if err != nil {
			w.a.event(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret", fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", r.Name))
			continue
		}
		out = append(out, s)
	}
	return out
}

func containerOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon); c.Name == name {
			return &c
		}
	}
	return nil
}

func (w *worker) removeContainer(ctx context.Context, in pods.Input, id string) error {
	if err := w.a.runtime.RemoveContainer(ctx, id); err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	for _, c := range in.Containers {
		if c.ID != id {
			continue
		}
		w.a.unlinkLog(w.ref, c.Name, id)
		if c.LogPath != "" {
			rotated, _ := filepath.Glob(c.LogPath + ".*")
			for _, f := range append(rotated, c.LogPath) {
				if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
					w.log.Warn("log of a removed container left", "path", f, "err", err)
				}
			}
		}
	}
	return nil
}

func (w *worker) cleanup() error {
	if err := w.a.volumes.Teardown(w.ref.UID); err != nil {
		w.delayCleanup()
		return err
	}
	if err := w.a.cgroups.Remove(w.ref.UID); err != nil {
		w.delayCleanup()
		return err
	}
	w.succeeded(pods.Cleanup)
	w.lock(func() { w.known.Cleaned, w.known.Prepared = true, false })
	return nil
}

func (w *worker) delayCleanup() {
	d := w.backoff(pods.Cleanup, 10*time.Second)
	w.lock(func() { w.known.PrepareAfter = time.Now().Add(d) })
}

func (w *worker) finish() error {
	w.a.unlinkLogs(w.ref)
	if err := os.RemoveAll(cri.LogDir(w.a.cfg.PodLogsDir, w.ref)); err != nil {
		w.log.Warn("logs of a removed pod left", "err", err)
	}
	w.log.Info("pod removed")
	return nil
}
