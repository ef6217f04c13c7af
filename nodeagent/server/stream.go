package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
)

// streamOptions are the streams that the API server asks a node for.
type streamOptions struct{ stdin, stdout, stderr, tty bool }

func parseStreams(q url.Values) (streamOptions, error) {
	on := func(k string) bool { v := q.Get(k); return v == "1" || v == "true" }
	o := streamOptions{stdin: on(v1.ExecStdinParam), stdout: on(v1.ExecStdoutParam), stderr: on(v1.ExecStderrParam), tty: on(v1.ExecTTYParam)}
	if o.tty {
		o.stderr = false // a terminal has one output
	}
	if !o.stdin && !o.stdout && !o.stderr {
		return o, fail(http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// running finds the container's newest instance and refuses one that is not running.
func (s *Server) running(r *http.Request) (*v1.Pod, *runtimeapi.Container, error) {
	p, err := s.pod(r)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.instance(r.Context(), p, r.PathValue("container"), false)
	if err != nil {
		return nil, nil, err
	}
	if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, nil, fail(http.StatusBadRequest, "container %q in pod %q is not running", r.PathValue("container"), p.Name)
	}
	return p, c, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	o, err := parseStreams(q)
	if err != nil {
		writeError(w, err)
		return
	}
	_, c, err := s.running(r)
	if err != nil {
		writeError(w, err)
		return
	}
	res, err := s.cfg.Pods.Runtime().Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: c.Id, Cmd: q[v1.ExecCommandParam], Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr})
	if err != nil {
		writeError(w, fmt.Errorf("exec in container %q: %w", r.PathValue("container"), err))
		return
	}
	s.stream(w, r, res.Url)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	o, err := parseStreams(r.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	_, c, err := s.running(r)
	if err != nil {
		writeError(w, err)
		return
	}
	res, err := s.cfg.Pods.Runtime().Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: c.Id, Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr})
	if err != nil {
		writeError(w, fmt.Errorf("attach to container %q: %w", r.PathValue("container"), err))
		return
	}
	s.stream(w, r, res.Url)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	p, err := s.pod(r)
	if err != nil {
		writeError(w, err)
		return
	}
	var ports []int32
	for _, t := range r.URL.Query()["port"] { // WebSocket callers name the ports here, SPDY callers in their streams
		n, err := strconv.ParseUint(t, 10, 16)
		if err != nil || n == 0 {
			writeError(w, fail(http.StatusBadRequest, "port %q is not a number from 1 to 65535", t))
			return
		}
		ports = append(ports, int32(n))
	}
	id, err := s.cfg.Pods.SandboxID(r.Context(), p)
	if err != nil {
		writeError(w, fail(http.StatusBadRequest, "port-forward: %w", err))
		return
	}
	res, err := s.cfg.Pods.Runtime().PortForward(r.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: ports})
	if err != nil {
		writeError(w, fmt.Errorf("port-forward to pod %s/%s: %w", p.Namespace, p.Name, err))
		return
	}
	s.stream(w, r, res.Url)
}

// stream passes the caller's upgraded connection through to the runtime's
// streaming server, whose address holds a one-time token.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, addr string) {
	u, err := url.Parse(addr)
	if err != nil {
		writeError(w, fmt.Errorf("address of the runtime's streaming server: %w", err))
		return
	}
	h := proxy.NewUpgradeAwareHandler(u, nil, false, true, streamError{s})
	h.ServeHTTP(w, r)
}

type streamError struct{ s *Server }

func (e streamError) Error(w http.ResponseWriter, r *http.Request, err error) {
	e.s.log.Warn("node API: stream failed", "path", r.URL.Path, "err", err)
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// run executes a command and answers with its output when it has ended.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	_, c, err := s.running(r)
	if err != nil {
		writeError(w, err)
		return
	}
	cmd := r.URL.Query()["cmd"]
	if len(cmd) == 0 {
		writeError(w, fail(http.StatusBadRequest, "cmd is missing"))
		return
	}
	stdout, stderr, err := s.cfg.Pods.Runtime().ExecSync(r.Context(), c.Id, cmd, 5*time.Minute)
	if err != nil && len(stdout)+len(stderr) == 0 {
		writeError(w, fmt.Errorf("run in container %q: %w", r.PathValue("container"), err))
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = w.Write(stdout)
	_, _ = w.Write(stderr)
}
