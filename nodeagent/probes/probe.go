// Package probes runs the liveness, readiness and startup probes of
// containers.
package probes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
)

// Result of one probe.
type Result int

// Unknown is a probe that could not be made, which counts for nothing.
const (
	Unknown Result = iota
	Success
	Failure
)

const maxBody = 10 << 10 // bytes of an answer that are read

// Execer runs a command in a container.
type Execer interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

// Target is where a probe goes.
type Target struct {
	ContainerID string
	Container   *v1.Container
	PodIP       string
}

// Once makes one probe and returns its result with what was seen.
func Once(ctx context.Context, ex Execer, p *v1.Probe, t Target) (Result, string) {
	timeout := time.Duration(p.TimeoutSeconds) * time.Second
	if timeout <= 0 {
		timeout = time.Second
	}
	switch {
	case p.Exec != nil:
		return execProbe(ctx, ex, t.ContainerID, p.Exec.Command, timeout)
	case p.HTTPGet != nil:
		return httpProbe(ctx, p.HTTPGet, t, timeout)
	case p.TCPSocket != nil:
		port, err := Port(p.TCPSocket.Port, t.Container)
		if err != nil {
			return Unknown, err.Error()
		}
		host := p.TCPSocket.Host
		if host == "" {
			host = t.PodIP
		}
		d := net.Dialer{Timeout: timeout}
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return Failure, err.Error()
		}
		conn.Close()
		return Success, ""
	case p.GRPC != nil:
		return grpcProbe(ctx, p.GRPC, t.PodIP, timeout)
	}
	return Unknown, "the probe has no handler"
}

func execProbe(ctx context.Context, ex Execer, id string, cmd []string, timeout time.Duration) (Result, string) {
	stdout, stderr, err := ex.ExecSync(ctx, id, cmd, timeout)
	out := strings.TrimSpace(string(append(stdout, stderr...)))
	var exit *cri.ExitError
	switch {
	case err == nil:
		return Success, out
	case errors.As(err, &exit):
		return Failure, out
	case errors.Is(err, cri.ErrExecTimeout):
		return Failure, fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(cmd, " "), timeout)
	default:
		return Unknown, err.Error()
	}
}

// Port resolves a port of a container by number or name.
func Port(p intstr.IntOrString, c *v1.Container) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				n = int(cp.ContainerPort)
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("port %q of container %s is neither a number from 1 to 65535 nor the name of one of its ports", p.String(), c.Name)
	}
	return n, nil
}

// HTTPRequest is the request an HTTP handler describes, from userAgent.
func HTTPRequest(ctx context.Context, h *v1.HTTPGetAction, c *v1.Container, podIP, userAgent string) (*http.Request, error) {
	port, err := Port(h.Port, c)
	if err != nil {
		return nil, err
	}
	host := h.Host
	if host == "" {
		host = podIP
	}
	u, err := url.Parse(h.Path)
	if err != nil {
		u = &url.URL{Path: h.Path}
	}
	u.Scheme = strings.ToLower(string(h.Scheme))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "*/*")
	for _, kv := range h.HTTPHeaders {
		if http.CanonicalHeaderKey(kv.Name) == "Host" {
			req.Host = kv.Value
			continue
		}
		if len(req.Header.Values(kv.Name)) > 0 && (strings.EqualFold(kv.Name, "User-Agent") || strings.EqualFold(kv.Name, "Accept")) {
			if kv.Value == "" {
				req.Header.Del(kv.Name)
			} else {
				req.Header.Set(kv.Name, kv.Value)
			}
			continue
		}
		req.Header.Add(kv.Name, kv.Value)
	}
	return req, nil
}

// Client is an HTTP client for probes and hooks: no proxy, no certificate
// checks (a pod's certificate is its own affair), no connection kept, and
// redirects followed only on the same host.
func Client(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
			DisableKeepAlives:  true,
			DisableCompression: true,
			Proxy:              nil,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= 10 {
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
}

func httpProbe(ctx context.Context, h *v1.HTTPGetAction, t Target, timeout time.Duration) (Result, string) {
	req, err := HTTPRequest(ctx, h, t.Container, t.PodIP, "kube-probe/1.37")
	if err != nil {
		return Unknown, err.Error()
	}
	resp, err := Client(timeout).Do(req)
	if err != nil {
		return Failure, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if resp.StatusCode >= 200 && resp.StatusCode < 400 {
		return Success, string(body)
	}
	return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)
}

func grpcProbe(ctx context.Context, g *v1.GRPCAction, ip string, timeout time.Duration) (Result, string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addr := net.JoinHostPort(ip, strconv.Itoa(int(g.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("kube-probe/1.37"))
	if err != nil {
		return Failure, err.Error()
	}
	defer conn.Close()
	service := ""
	if g.Service != nil {
		service = *g.Service
	}
	r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		switch status.Code(err) {
		case codes.DeadlineExceeded:
			return Failure, fmt.Sprintf("timeout: failed to connect service %q within %s", addr, timeout)
		case codes.Unimplemented:
			return Failure, fmt.Sprintf("%q does not implement the gRPC health protocol: %v", addr, err)
		}
		return Failure, err.Error()
	}
	if r.Status != healthpb.HealthCheckResponse_SERVING {
		return Failure, fmt.Sprintf("service unhealthy (responded with %q)", r.Status.String())
	}
	return Success, ""
}
