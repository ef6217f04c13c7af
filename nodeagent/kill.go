package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/pods"
	"github.com/tripod-cluster/tripod/nodeagent/probes"
)

const (
	minStopGrace = 2 * time.Second  // left for a container whose hook used the grace up
	hookTimeout  = 10 * time.Minute // of a postStart hook; preStop has the grace
)

// stopContainer stops one container, aside: preStop hook, stop signal, and
// at the end of the grace the kill. A second call for the same container, with
// less grace, overtakes the first.
func (w *worker) stopContainer(ctx context.Context, in pods.Input, s pods.StopOne) {
	deadline := time.Now().Add(s.Grace)
	w.lock(func() { w.known.Stopping[s.ID] = deadline })
	if in.Pod != nil {
		w.a.event(in.Pod, v1.EventTypeNormal, "Killing", killMessage(s))
	}
	w.log.Info("stopping container", "container", s.Name, "id", s.ID, "grace", s.Grace.Round(time.Second), "why", s.Reason)
	var spec *v1.Container
	if in.Pod != nil {
		spec = containerOf(in.Pod, s.Name)
	}
	ip := ""
	if in.Pod != nil {
		ip = ipOf(in.Pod, in.ReadySandbox(), w.a)
	}
	w.aside(func() {
		grace := s.Grace
		if s.Hook && spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil {
			hctx, cancel := context.WithTimeout(ctx, grace)
			err := w.a.hook(hctx, in.Pod, spec, spec.Lifecycle.PreStop, s.ID, ip)
			cancel()
			if err != nil && ctx.Err() == nil {
				w.a.event(in.Pod, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
			}
			grace = max(time.Until(deadline), minStopGrace)
		}
		if ctx.Err() != nil {
			return // the agent ends; its successor goes on
		}
		err := w.a.runtime.StopContainer(ctx, s.ID, int64((grace+time.Second-1)/time.Second))
		if err != nil && !cri.IsNotFound(err) && ctx.Err() == nil {
			w.log.Warn("container not stopped, will try again", "container", s.Name, "id", s.ID, "err", err)
			select { // not in a circle
			case <-time.After(2 * time.Second):
			case <-ctx.Done():
			}
		}
		w.lock(func() {
			if w.known.Stopping[s.ID].Equal(deadline) {
				delete(w.known.Stopping, s.ID)
			}
		})
	})
}

func killMessage(s pods.StopOne) string {
	if s.Reason == "" || s.Reason == "Stopping container" {
		return "Stopping container " + s.Name
	}
	return s.Reason
}

// hook runs a lifecycle handler of a container.
func (a *Agent) hook(ctx context.Context, pod *v1.Pod, c *v1.Container, h *v1.LifecycleHandler, id, ip string) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, hookTimeout)
		defer cancel()
	}
	switch {
	case h.Exec != nil:
		deadline, _ := ctx.Deadline()
		stdout, stderr, err := a.runtime.ExecSync(ctx, id, h.Exec.Command, time.Until(deadline))
		var exit *cri.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("command %q: %w: %s", h.Exec.Command, err, head(append(stdout, stderr...)))
		}
		if err != nil {
			return fmt.Errorf("command %q: %w", h.Exec.Command, err)
		}
		return nil
	case h.HTTPGet != nil:
		req, err := probes.HTTPRequest(ctx, h.HTTPGet, c, ip, "kube-lifecycle/1.37")
		if err != nil {
			return err
		}
		resp, err := probes.Client(0).Do(req)
		if err != nil {
			return fmt.Errorf("http hook of container %s in pod %s/%s: %w", c.Name, pod.Namespace, pod.Name, err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10))
		return nil
	case h.Sleep != nil:
		t := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("hook of container %s has no handler this node knows", c.Name)
}

func head(b []byte) string {
	const most = 1024
	if len(b) > most {
		b = b[:most]
	}
	return string(b)
}
