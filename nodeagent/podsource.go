package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	ktypes "k8s.io/kubelet/pkg/types"
)

// Pods returns the agent's view of its pods, usable as soon as New returned.
func (a *Agent) Pods() PodSource { return (*podSource)(a) }

type podSource Agent

func (s *podSource) Runtime() internalapi.RuntimeService { return s.runtime }

func (s *podSource) PodByName(namespace, name string) (*v1.Pod, bool) {
	for _, p := range s.AllPods() {
		if p.Namespace == namespace && p.Name == name {
			return p, true
		}
	}
	return nil, false
}

func (s *podSource) PodByUID(uid types.UID) (*v1.Pod, bool) {
	for _, p := range s.AllPods() {
		if p.UID == uid {
			return p, true
		}
	}
	return nil, false
}

// instances returns a container's instances, newest first.
func (s *podSource) instances(ctx context.Context, pod *v1.Pod, container string) ([]*runtimeapi.Container, error) {
	list, err := s.runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{
		ktypes.KubernetesPodUIDLabel: string(pod.UID), ktypes.KubernetesContainerNameLabel: container}})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	sortNewestFirst(list)
	return list, nil
}

func (s *podSource) ContainerID(ctx context.Context, pod *v1.Pod, container string) (string, runtimeapi.ContainerState, error) {
	list, err := s.instances(ctx, pod, container)
	if err != nil {
		return "", runtimeapi.ContainerState_CONTAINER_UNKNOWN, err
	}
	if len(list) == 0 {
		return "", runtimeapi.ContainerState_CONTAINER_UNKNOWN, fmt.Errorf("container %s of pod %s/%s: %w", container, pod.Namespace, pod.Name, ErrContainerNotFound)
	}
	return list[0].Id, list[0].State, nil
}

func (s *podSource) SandboxID(ctx context.Context, pod *v1.Pod) (string, error) {
	list, err := s.runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{ktypes.KubernetesPodUIDLabel: string(pod.UID)}})
	if err != nil {
		return "", fmt.Errorf("list sandboxes of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	var newest *runtimeapi.PodSandbox
	for _, sb := range list {
		if newest == nil || sb.CreatedAt > newest.CreatedAt {
			newest = sb
		}
	}
	if newest == nil {
		return "", fmt.Errorf("pod %s/%s has no running sandbox: %w", pod.Namespace, pod.Name, ErrContainerNotFound)
	}
	return newest.Id, nil
}

func (s *podSource) LogPath(ctx context.Context, pod *v1.Pod, container string, previous bool) (string, error) {
	list, err := s.instances(ctx, pod, container)
	if err != nil {
		return "", err
	}
	n := 0
	// While a container waits for its restart, the instance that ended last is
	// both the newest and the previous one, as its status says.
	if previous && !waitsAfter(pod, container, list) {
		n = 1
	}
	if len(list) <= n {
		if previous {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found: %w", container, pod.Name, ErrContainerNotFound)
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %w", container, pod.Name, ErrContainerNotFound)
	}
	st, err := s.runtime.ContainerStatus(ctx, list[n].Id, false)
	if err != nil {
		return "", fmt.Errorf("status of container %s in pod %s/%s: %w", container, pod.Namespace, pod.Name, err)
	}
	return st.Status.LogPath, nil
}

func waitsAfter(pod *v1.Pod, container string, list []*runtimeapi.Container) bool {
	if len(list) == 0 || list[0].State != runtimeapi.ContainerState_CONTAINER_EXITED {
		return false
	}
	for _, l := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range l {
			if s.Name == container {
				return s.State.Waiting != nil && s.LastTerminationState.Terminated != nil
			}
		}
	}
	return false
}

func sortNewestFirst(list []*runtimeapi.Container) {
	slices.SortFunc(list, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
}

// AllPods lists the pods of the agent's cache.
func (s *podSource) AllPods() []*v1.Pod { return s.pods.all() }

func (s *podSource) Summary(ctx context.Context) (*statsapi.Summary, error) {
	return (*Agent)(s).summary(ctx)
}
