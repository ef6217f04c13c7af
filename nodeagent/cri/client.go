// Package cri speaks CRI v1 to the container runtime and turns a pod's spec
// into the runtime's configuration.
//
// Labels and annotations on sandboxes and containers carry the names kubelet
// uses, so crictl shows them, and hold what an agent needs to take over pods
// it did not start: pod identity, restart count, hash of the spec, grace.
package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	callTimeout    = 2 * time.Minute  // calls that should answer at once
	sandboxTimeout = 4 * time.Minute  // RunPodSandbox may pull the pause image and waits for CNI
	pullTimeout    = 30 * time.Minute // PullImage
	maxMessage     = 16 << 20         // bytes; lists of many pods outgrow gRPC's 4 MiB
)

// ErrExecTimeout is returned (wrapped) by ExecSync when the command ran into
// its timeout.
var ErrExecTimeout = errors.New("command timed out")

// ExitError is returned by ExecSync when the command ran and its exit code was
// not 0.
type ExitError struct{ Code int32 }

func (e *ExitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.Code)
}

// Client is a connection to the runtime. It implements RuntimeService and
// ImageManagerService of k8s.io/cri-api. It dials when first used and redials
// by itself, so it can be made while the runtime is down.
type Client struct {
	conn *grpc.ClientConn
	rt   runtimeapi.RuntimeServiceClient
	img  runtimeapi.ImageServiceClient
}

var (
	_ internalapi.RuntimeService      = (*Client)(nil)
	_ internalapi.ImageManagerService = (*Client)(nil)
)

// Dial makes a client for endpoint, a unix socket as unix:///path or a bare
// path. It does not wait for the runtime.
func Dial(endpoint string) (*Client, error) {
	target := endpoint
	if strings.HasPrefix(target, "/") {
		target = "unix://" + target
	}
	if !strings.HasPrefix(target, "unix://") {
		return nil, fmt.Errorf("container runtime endpoint %q is not a unix socket: use unix:///run/containerd/containerd.sock", endpoint)
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, fmt.Errorf("container runtime at %s: %w", endpoint, err)
	}
	return &Client{conn: conn, rt: runtimeapi.NewRuntimeServiceClient(conn), img: runtimeapi.NewImageServiceClient(conn)}, nil
}

// IsNotFound says whether err is the runtime's answer for an ID it does not know.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// IsUnavailable says whether err means that the runtime could not be reached.
func IsUnavailable(err error) bool {
	return status.Code(err) == codes.Unavailable
}

func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// Close ends the connection.
func (c *Client) Close(context.Context) error { return c.conn.Close() }

// Version returns the runtime's name and version.
func (c *Client) Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.Version(ctx, &runtimeapi.VersionRequest{Version: apiVersion})
}

// RunPodSandbox creates and starts a sandbox and returns its ID.
func (c *Client) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	ctx, cancel := bound(ctx, sandboxTimeout)
	defer cancel()
	r, err := c.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return "", err
	}
	if r.PodSandboxId == "" {
		return "", fmt.Errorf("runtime returned no ID for the sandbox of pod %s", config.GetMetadata().GetName())
	}
	return r.PodSandboxId, nil
}

// StopPodSandbox stops a sandbox, its containers and its network; idempotent.
func (c *Client) StopPodSandbox(ctx context.Context, id string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

// RemovePodSandbox removes a sandbox and its containers; idempotent.
func (c *Client) RemovePodSandbox(ctx context.Context, id string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// PodSandboxStatus returns a sandbox with its network addresses.
func (c *Client) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: verbose})
}

// ListPodSandbox lists sandboxes that match filter (nil: all).
func (c *Client) ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
	return r.GetItems(), err
}

// PortForward returns the URL to stream a port of the sandbox from.
func (c *Client) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.PortForward(ctx, req)
}

// UpdatePodSandboxResources changes pod-level resources.
func (c *Client) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.UpdatePodSandboxResources(ctx, req)
}

// CheckpointPod passes a pod checkpoint request through.
func (c *Client) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) error {
	_, err := c.rt.CheckpointPod(ctx, req)
	return err
}

// RestorePod passes a pod restore request through.
func (c *Client) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return c.rt.RestorePod(ctx, req)
}

// CreateContainer creates a container in a sandbox and returns its ID.
func (c *Client) CreateContainer(ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandboxID, Config: config, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	if r.ContainerId == "" {
		return "", fmt.Errorf("runtime returned no ID for container %s", config.GetMetadata().GetName())
	}
	return r.ContainerId, nil
}

// StartContainer starts a created container.
func (c *Client) StartContainer(ctx context.Context, id string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// StopContainer sends the stop signal, and after timeout seconds kills;
// idempotent.
func (c *Client) StopContainer(ctx context.Context, id string, timeout int64) error {
	ctx, cancel := bound(ctx, callTimeout+time.Duration(timeout)*time.Second)
	defer cancel()
	_, err := c.rt.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout})
	return err
}

// RemoveContainer removes a container; idempotent.
func (c *Client) RemoveContainer(ctx context.Context, id string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return err
}

// ListContainers lists containers that match filter (nil: all).
func (c *Client) ListContainers(ctx context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
	return r.GetContainers(), err
}

// ContainerStatus returns one container's state, exit code, times and mounts.
func (c *Client) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
	if err == nil && r.GetStatus() == nil {
		return nil, fmt.Errorf("runtime returned no status for container %s", id)
	}
	return r, err
}

// UpdateContainerResources changes a running container's limits.
func (c *Client) UpdateContainerResources(ctx context.Context, id string, res *runtimeapi.ContainerResources) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: res.GetLinux(), Windows: res.GetWindows()})
	return err
}

// ExecSync runs a command in a container and waits for it, at most timeout
// (0: as long as ctx). A non-zero exit is an *ExitError, a timeout wraps
// ErrExecTimeout; output is returned in both cases where there is any.
func (c *Client) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	if timeout > 0 {
		// The runtime keeps the timeout; the margin is for its answer.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+15*time.Second)
		defer cancel()
	}
	secs := int64((timeout + time.Second - 1) / time.Second)
	r, err := c.rt.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: secs})
	if err != nil {
		if status.Code(err) == codes.DeadlineExceeded {
			err = fmt.Errorf("%w after %s: %w", ErrExecTimeout, timeout, err)
		}
		return nil, nil, err
	}
	if r.ExitCode != 0 {
		return r.Stdout, r.Stderr, &ExitError{Code: r.ExitCode}
	}
	return r.Stdout, r.Stderr, nil
}

// Exec returns the URL to stream a command from.
func (c *Client) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.Exec(ctx, req)
}

// Attach returns the URL to stream a container's standard streams from.
func (c *Client) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.Attach(ctx, req)
}

// ReopenContainerLog makes the runtime open a container's log file anew.
func (c *Client) ReopenContainerLog(ctx context.Context, id string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	return err
}

// CheckpointContainer passes a checkpoint request through.
func (c *Client) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) error {
	_, err := c.rt.CheckpointContainer(ctx, req)
	return err
}

// GetContainerEvents sends the runtime's events to ch until ctx ends or the
// stream breaks. containerd 1.6 answers Unimplemented.
func (c *Client) GetContainerEvents(ctx context.Context, ch chan *runtimeapi.ContainerEventResponse, connected func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	stream, err := c.rt.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	if connected != nil {
		connected(stream)
	}
	for {
		ev, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case ch <- ev:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
