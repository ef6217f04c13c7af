package cri

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	ktypes "k8s.io/kubelet/pkg/types"

	"github.com/tripod-cluster/tripod/nodeagent/pods"
)

// Annotations of containers, named as kubelet names them.
const (
	annotationHash          = "io.kubernetes.container.hash"
	annotationRestartCount  = "io.kubernetes.container.restartCount"
	annotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationGrace         = "io.kubernetes.pod.terminationGracePeriod"
)

// Ref names a pod as its labels in the runtime do.
type Ref struct {
	UID             types.UID
	Namespace, Name string
}

// RefOf reads a pod's name from the labels of a sandbox or container; false
// when it does not belong to a pod.
func RefOf(labels map[string]string) (Ref, bool) {
	r := Ref{UID: types.UID(labels[ktypes.KubernetesPodUIDLabel]), Namespace: labels[ktypes.KubernetesPodNamespaceLabel], Name: labels[ktypes.KubernetesPodNameLabel]}
	return r, r.UID != "" && r.Name != ""
}

func podLabels(pod *v1.Pod) map[string]string {
	return map[string]string{
		ktypes.KubernetesPodNameLabel:      pod.Name,
		ktypes.KubernetesPodNamespaceLabel: pod.Namespace,
		ktypes.KubernetesPodUIDLabel:       string(pod.UID),
	}
}

func sandboxLabels(pod *v1.Pod) map[string]string {
	l := map[string]string{}
	for k, v := range pod.Labels {
		l[k] = v
	}
	for k, v := range podLabels(pod) {
		l[k] = v
	}
	return l
}

func containerLabels(pod *v1.Pod, c *v1.Container) map[string]string {
	l := podLabels(pod)
	l[ktypes.KubernetesContainerNameLabel] = c.Name
	return l
}

func containerAnnotations(pod *v1.Pod, c *v1.Container, attempt int) map[string]string {
	a := map[string]string{
		annotationHash:          pods.SpecHash(c),
		annotationRestartCount:  strconv.Itoa(attempt),
		annotationMessagePath:   c.TerminationMessagePath,
		annotationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		a[annotationGrace] = strconv.FormatInt(*g, 10)
	}
	return a
}

// LogDir is the directory with a pod's container logs below root.
func LogDir(root string, r Ref) string {
	return filepath.Join(root, r.Namespace+"_"+r.Name+"_"+string(r.UID))
}

// Observer reads what the runtime holds of one pod. It remembers instances
// that have ended, which do not change any more. It is used by one goroutine.
type Observer struct {
	client *Client
	uid    types.UID
	ended  map[string]pods.Container
}

// NewObserver makes an Observer of the pod with that UID.
func NewObserver(c *Client, uid types.UID) *Observer {
	return &Observer{client: c, uid: uid, ended: map[string]pods.Container{}}
}

// Observe asks the runtime.
func (o *Observer) Observe(ctx context.Context) (pods.Observed, error) {
	var out pods.Observed
	sel := map[string]string{ktypes.KubernetesPodUIDLabel: string(o.uid)}
	boxes, err := o.client.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: sel})
	if err != nil {
		return out, fmt.Errorf("list sandboxes: %w", err)
	}
	list, err := o.client.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: sel})
	if err != nil {
		return out, fmt.Errorf("list containers: %w", err)
	}
	for _, b := range boxes {
		s := pods.Sandbox{ID: b.Id, Ready: b.State == runtimeapi.PodSandboxState_SANDBOX_READY, Attempt: b.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, b.CreatedAt)}
		if s.Ready {
			st, err := o.client.PodSandboxStatus(ctx, b.Id, false)
			if IsNotFound(err) {
				continue
			}
			if err != nil {
				return out, fmt.Errorf("status of sandbox %s: %w", b.Id, err)
			}
			s.Ready = st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
			if n := st.GetStatus().GetNetwork(); n.GetIp() != "" {
				s.IPs = append(s.IPs, n.Ip)
				for _, ip := range n.AdditionalIps {
					s.IPs = append(s.IPs, ip.Ip)
				}
			}
		}
		out.Sandboxes = append(out.Sandboxes, s)
	}
	slices.SortFunc(out.Sandboxes, func(a, b pods.Sandbox) int { return b.CreatedAt.Compare(a.CreatedAt) })
	ended := map[string]pods.Container{}
	for _, c := range list {
		pc, ok := o.ended[c.Id]
		if !ok {
			st, err := o.client.ContainerStatus(ctx, c.Id, false)
			if IsNotFound(err) {
				continue
			}
			if err != nil {
				return out, fmt.Errorf("status of container %s: %w", c.Id, err)
			}
			pc = container(c, st.Status)
		}
		if pc.State == pods.Exited {
			ended[c.Id] = pc
		}
		out.Containers = append(out.Containers, pc)
	}
	o.ended = ended
	slices.SortFunc(out.Containers, func(a, b pods.Container) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out, nil
}

func container(c *runtimeapi.Container, st *runtimeapi.ContainerStatus) pods.Container {
	l, a := st.Labels, st.Annotations
	attempt := int(st.GetMetadata().GetAttempt())
	if n, err := strconv.Atoi(a[annotationRestartCount]); err == nil {
		attempt = n
	}
	grace, err := strconv.ParseInt(a[annotationGrace], 10, 64)
	if err != nil {
		grace = 30
	}
	out := pods.Container{
		ID: c.Id, SandboxID: c.PodSandboxId, Name: l[ktypes.KubernetesContainerNameLabel], Attempt: attempt,
		CreatedAt: unixNano(st.CreatedAt), StartedAt: unixNano(st.StartedAt), FinishedAt: unixNano(st.FinishedAt),
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: st.GetImage().GetImage(), ImageRef: st.ImageRef, ImageID: st.ImageId,
		Hash: a[annotationHash], Grace: grace, LogPath: st.LogPath,
	}
	switch st.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		out.State = pods.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		out.State = pods.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		out.State = pods.Exited
		out.Message = terminationMessage(st)
	default:
		out.State = pods.Unknown
	}
	return out
}

func unixNano(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
