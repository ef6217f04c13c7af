package nodeagent

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

var (
	// ErrPodNotFound says that no pod of that name or UID is on this node.
	ErrPodNotFound = errors.New("pod not found on this node")
	// ErrContainerNotFound says that the pod has no such container, or that
	// the container has no instance yet.
	ErrContainerNotFound = errors.New("container not found in the pod")
)

// PodSource is the agent's view of its pods for the node's API server. All
// methods are safe for concurrent use; returned pods are shared and must not
// be changed.
type PodSource interface {
	// PodByName returns the pod with its latest status as the agent knows it.
	PodByName(namespace, name string) (*v1.Pod, bool)
	PodByUID(uid types.UID) (*v1.Pod, bool)
	// AllPods returns every pod on the node, in no order.
	AllPods() []*v1.Pod
	// ContainerID returns CRI's ID and state of the newest instance of a
	// container (init, main or ephemeral), asked from the runtime.
	ContainerID(ctx context.Context, pod *v1.Pod, container string) (id string, state runtimeapi.ContainerState, err error)
	// SandboxID returns CRI's ID of the pod's newest ready sandbox.
	SandboxID(ctx context.Context, pod *v1.Pod) (string, error)
	// LogPath returns the file with the log of the newest instance, or of the
	// instance before it.
	LogPath(ctx context.Context, pod *v1.Pod, container string, previous bool) (string, error)
	// Runtime returns the CRI runtime service, shared with the agent. The
	// caller must not close it.
	Runtime() internalapi.RuntimeService
	// Summary returns what /stats/summary answers.
	Summary(ctx context.Context) (*statsapi.Summary, error)
}
