package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	ktypes "k8s.io/kubelet/pkg/types"

	"github.com/tripod-cluster/tripod/nodeagent/crilog"
)

// httpError is an error with the status that a kubelet would answer with.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }
func (e *httpError) Unwrap() error { return e.err }

func fail(status int, format string, args ...any) error {
	return &httpError{status, fmt.Errorf(format, args...)}
}

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var he *httpError
	if errors.As(err, &he) {
		status = he.status
	}
	http.Error(w, err.Error(), status)
}

// pod finds the pod that the request's path names.
func (s *Server) pod(r *http.Request) (*v1.Pod, error) {
	ns, name := r.PathValue("namespace"), r.PathValue("pod")
	p, ok := s.cfg.Pods.PodByName(ns, name)
	if !ok || (r.PathValue("uid") != "" && string(p.UID) != r.PathValue("uid")) {
		return nil, fail(http.StatusNotFound, "pod %q not found in namespace %q on node %s", name, ns, s.cfg.NodeName)
	}
	return p, nil
}

// hasContainer tells whether the pod's spec names the container.
func hasContainer(p *v1.Pod, name string) bool {
	for _, c := range p.Spec.Containers {
		if c.Name == name {
			return true
		}
	}
	for _, c := range p.Spec.InitContainers {
		if c.Name == name {
			return true
		}
	}
	for _, c := range p.Spec.EphemeralContainers {
		if c.Name == name {
			return true
		}
	}
	return false
}

// instance finds the newest instance of a container, or the one before it.
func (s *Server) instance(ctx context.Context, p *v1.Pod, name string, previous bool) (*runtimeapi.Container, error) {
	if !hasContainer(p, name) {
		return nil, fail(http.StatusNotFound, "container %q not found in pod %q", name, p.Name)
	}
	list, err := s.cfg.Pods.Runtime().ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{
		ktypes.KubernetesPodUIDLabel: string(p.UID), ktypes.KubernetesContainerNameLabel: name}})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Container) int { return int(min(max(b.CreatedAt-a.CreatedAt, -1), 1)) })
	switch {
	case previous && len(list) < 2:
		return nil, fail(http.StatusBadRequest, "previous terminated container %q in pod %q not found", name, p.Name)
	case previous:
		return list[1], nil
	case len(list) == 0:
		return nil, fail(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", name, p.Name, waitingReason(p, name))
	}
	return list[0], nil
}

func waitingReason(p *v1.Pod, name string) string {
	for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, st := range list {
			if st.Name == name && st.State.Waiting != nil {
				if m := st.State.Waiting.Message; m != "" {
					return st.State.Waiting.Reason + ": " + m
				}
				return st.State.Waiting.Reason
			}
		}
	}
	return "not started yet"
}

type logRequest struct {
	crilog.Options
	previous       bool
	stdout, stderr bool
}

func parseLogRequest(q url.Values) (logRequest, error) {
	o := logRequest{Options: crilog.Options{Tail: -1, Limit: -1}, stdout: true, stderr: true}
	boolean := func(key string, dst *bool) error {
		if s := q.Get(key); s != "" {
			v, err := strconv.ParseBool(s)
			if err != nil {
				return fmt.Errorf("%s=%q is not a boolean", key, s)
			}
			*dst = v
		}
		return nil
	}
	number := func(key string, low int64, dst *int64) error {
		if s := q.Get(key); s != "" {
			v, err := strconv.ParseInt(s, 10, 64)
			if err != nil || v < low {
				return fmt.Errorf("%s=%q is not a number of at least %d", key, s, low)
			}
			*dst = v
		}
		return nil
	}
	since := int64(-1)
	err := errors.Join(
		boolean("follow", &o.Follow), boolean("previous", &o.previous), boolean("timestamps", &o.Timestamps),
		number("tailLines", 0, &o.Tail), number("limitBytes", 1, &o.Limit), number("sinceSeconds", 1, &since))
	if err != nil {
		return o, err
	}
	if since >= 0 {
		o.Since = time.Now().Add(-time.Duration(since) * time.Second)
	}
	if s := q.Get("sinceTime"); s != "" {
		if since >= 0 {
			return o, errors.New("at most one of sinceTime and sinceSeconds may be given")
		}
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return o, fmt.Errorf("sinceTime: %w", err)
		}
		o.Since = t
	}
	switch s := q.Get("stream"); s {
	case "", v1.LogStreamAll:
	case v1.LogStreamStdout:
		o.stderr = false
	case v1.LogStreamStderr:
		o.stdout = false
	default:
		return o, fmt.Errorf("stream=%q: use All, Stdout or Stderr", s)
	}
	return o, nil
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	o, err := parseLogRequest(r.URL.Query())
	if err != nil {
		writeError(w, fail(http.StatusUnprocessableEntity, "%w", err))
		return
	}
	p, err := s.pod(r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx := r.Context()
	c, err := s.instance(ctx, p, r.PathValue("container"), o.previous)
	if err != nil {
		writeError(w, err)
		return
	}
	st, err := s.cfg.Pods.Runtime().ContainerStatus(ctx, c.Id, false)
	if err != nil {
		writeError(w, fmt.Errorf("status of container %s: %w", c.Id, err))
		return
	}
	path := st.GetStatus().GetLogPath()
	if _, err := os.Stat(path); err != nil {
		writeError(w, fail(http.StatusNotFound, "log of container %q in pod %q: %w", r.PathValue("container"), p.Name, err))
		return
	}
	// A created container has written nothing yet but will.
	alive := func(ctx context.Context) bool {
		st, err := s.cfg.Pods.Runtime().ContainerStatus(ctx, c.Id, false)
		if err != nil {
			return false
		}
		state := st.GetStatus().GetState()
		return state == runtimeapi.ContainerState_CONTAINER_RUNNING || state == runtimeapi.ContainerState_CONTAINER_CREATED
	}
	w.Header().Set("Content-Type", "text/plain")
	out := bufio.NewWriterSize(w, 32<<10)
	flush := func() {
		_ = out.Flush()
		_ = http.NewResponseController(w).Flush()
	}
	if o.Follow {
		flush() // the client sees the header before the first line
	}
	var stdout, stderr io.Writer
	if o.stdout {
		stdout = out
	}
	if o.stderr {
		stderr = out
	}
	if err := crilog.Copy(ctx, path, o.Options, limitCalls(alive), stdout, stderr, flush); err != nil {
		s.log.Warn("node API: container log ended early", "pod", p.Namespace+"/"+p.Name, "container", r.PathValue("container"), "err", err)
	}
}

// limitCalls lets a question about a live container through once a second: the
// end of a busy log is reached much more often.
func limitCalls(alive func(context.Context) bool) func(context.Context) bool {
	var last time.Time
	return func(ctx context.Context) bool {
		if time.Since(last) < time.Second {
			return true
		}
		last = time.Now()
		return alive(ctx)
	}
}
