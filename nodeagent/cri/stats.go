package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats returns one container's usage.
func (c *Client) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
	return r.GetStats(), err
}

// ListContainerStats returns the usage of the containers that match filter.
func (c *Client) ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: filter})
	return r.GetStats(), err
}

// PodSandboxStats returns one sandbox's usage.
func (c *Client) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
	return r.GetStats(), err
}

// ListPodSandboxStats returns the usage of the sandboxes that match filter.
func (c *Client) ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{Filter: filter})
	return r.GetStats(), err
}

// ListMetricDescriptors returns the metrics the runtime can give.
func (c *Client) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	return r.GetDescriptors(), err
}

// ListPodSandboxMetrics returns the runtime's metrics of all sandboxes.
func (c *Client) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.rt.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	return r.GetPodMetrics(), err
}

// UpdateRuntimeConfig tells the runtime the pod CIDR.
func (c *Client) UpdateRuntimeConfig(ctx context.Context, config *runtimeapi.RuntimeConfig) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.rt.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: config})
	return err
}

// Status returns the runtime's conditions (RuntimeReady, NetworkReady).
func (c *Client) Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.Status(ctx, &runtimeapi.StatusRequest{Verbose: verbose})
}

// RuntimeConfig returns the runtime's cgroup driver; containerd 1.x answers
// Unimplemented.
func (c *Client) RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.rt.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
}

// ListImages lists images that match filter (nil: all).
func (c *Client) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	r, err := c.img.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: filter})
	return r.GetImages(), err
}

// ImageStatus returns an image, with a nil Image when it is not present.
func (c *Client) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.img.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: image, Verbose: verbose})
}

// PullImage pulls an image and returns its reference.
func (c *Client) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	ctx, cancel := bound(ctx, pullTimeout)
	defer cancel()
	r, err := c.img.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox})
	return r.GetImageRef(), err
}

// RemoveImage removes an image; idempotent.
func (c *Client) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	_, err := c.img.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: image})
	return err
}

// ImageFsInfo returns the usage of the file system with the images.
func (c *Client) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return c.img.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
}
