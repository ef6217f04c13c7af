// Package status turns what the runtime holds of a pod into its v1.PodStatus,
// in the words kubelet uses, and sends it to the API when it changes.
package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/pods"
)

// Reasons a container waits, or is said to have ended, with no word from the
// runtime about it.
const (
	ReasonContainerCreating = "ContainerCreating"
	ReasonPodInitializing   = "PodInitializing"
	ReasonUnknown           = "ContainerStatusUnknown"
)

// Readiness is what probes say of one container instance.
type Readiness struct{ Started, Ready bool }

// Input is what a pod's status is made from.
type Input struct {
	Pod      *v1.Pod // with the status the API has
	Observed pods.Observed
	Waiting  map[string]pods.Hold
	Probes   map[string]Readiness // by container ID
	Done     bool                 // no container will start any more
	Stop     *pods.Stop
	HostIPs  []string
	Now      time.Time
}

// Compute returns the pod's status. Conditions the agent does not own are
// kept; transition times change only with their condition.
func Compute(in Input) v1.PodStatus {
	old := in.Pod.Status
	st := *old.DeepCopy()
	c := computer{in: in}
	st.ObservedGeneration = in.Pod.Generation
	if st.StartTime == nil {
		t := metav1.NewTime(in.Now.Truncate(time.Second))
		st.StartTime = &t
	}
	st.QOSClass = cri.QOS(in.Pod)
	c.addresses(&st)
	st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
	for i := range in.Pod.Spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, c.container(&in.Pod.Spec.InitContainers[i], old.InitContainerStatuses, true))
	}
	initialized := c.initialized(st.InitContainerStatuses)
	c.initDone = initialized
	for i := range in.Pod.Spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, c.container(&in.Pod.Spec.Containers[i], old.ContainerStatuses, false))
	}
	for i := range in.Pod.Spec.EphemeralContainers {
		ec := v1.Container(in.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, c.container(&ec, old.EphemeralContainerStatuses, false))
	}
	if !pods.Terminal(in.Pod) {
		st.Phase = c.phase(&st, initialized)
		if in.Stop != nil && in.Stop.Reason != "" {
			st.Reason, st.Message = in.Stop.Reason, in.Stop.Message
			if !in.Observed.Live() {
				st.Phase = v1.PodFailed
			}
		}
	}
	c.conditions(&st, initialized)
	return st
}

type computer struct {
	in       Input
	initDone bool
}

func (c computer) addresses(st *v1.PodStatus) {
	st.HostIP, st.HostIPs = "", nil
	for i, ip := range c.in.HostIPs {
		if i == 0 {
			st.HostIP = ip
		}
		st.HostIPs = append(st.HostIPs, v1.HostIP{IP: ip})
	}
	ips := []string(nil)
	if sb := c.in.Observed.ReadySandbox(); sb != nil {
		ips = sb.IPs
		if c.in.Pod.Spec.HostNetwork {
			ips = c.in.HostIPs
		}
	}
	if len(ips) == 0 {
		return // what was there stays: an ended pod keeps its address for those who look
	}
	st.PodIP, st.PodIPs = ips[0], nil
	for _, ip := range ips {
		st.PodIPs = append(st.PodIPs, v1.PodIP{IP: ip})
	}
}

func (c computer) container(spec *v1.Container, old []v1.ContainerStatus, init bool) v1.ContainerStatus {
	out := v1.ContainerStatus{Name: spec.Name, Image: spec.Image, Started: new(bool)}
	var was *v1.ContainerStatus
	for i := range old {
		if old[i].Name == spec.Name {
			was = &old[i]
		}
	}
	var cur, prev *pods.Container
	for i := range c.in.Observed.Containers {
		switch k := &c.in.Observed.Containers[i]; {
		case k.Name != spec.Name:
		case cur == nil:
			cur = k
		case prev == nil:
			prev = k
		}
	}
	if prev != nil && prev.State == pods.Exited {
		out.LastTerminationState.Terminated = known(was, prev)
	}
	out.VolumeMounts = mountStatuses(spec)
	if cur == nil {
		c.absent(&out, was, spec)
		return out
	}
	out.RestartCount = int32(cur.Attempt)
	out.ContainerID = "containerd://" + cur.ID
	out.ImageID = cur.ImageRef
	if cur.Image != "" && !strings.HasPrefix(cur.Image, "sha256:") {
		out.Image = cur.Image
	}
	out.Resources = spec.Resources.DeepCopy()
	out.AllocatedResources = spec.Resources.Requests.DeepCopy()
	w, waits := c.in.Waiting[spec.Name]
	switch {
	case cur.State == pods.Running:
		out.State.Running = &v1.ContainerStateRunning{StartedAt: second(cur.StartedAt)}
		r := c.in.Probes[cur.ID]
		*out.Started = r.Started
		out.Ready = r.Ready && r.Started && (!init || pods.Restartable(spec))
	case cur.State == pods.Exited && waits && !c.in.Done:
		out.State.Waiting = &v1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}
		out.LastTerminationState.Terminated = known(was, cur)
	case cur.State == pods.Exited:
		out.State.Terminated = known(was, cur)
		out.Ready = init && !pods.Restartable(spec) && cur.ExitCode == 0
	case cur.State == pods.Unknown:
		out.State.Terminated = &v1.ContainerStateTerminated{ExitCode: 137, Reason: ReasonUnknown, ContainerID: out.ContainerID,
			Message: "The runtime lost sight of the container's process"}
	default:
		out.State.Waiting = &v1.ContainerStateWaiting{Reason: ReasonContainerCreating}
		out.ContainerID = ""
		if waits {
			out.State.Waiting = &v1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}
		}
	}
	return out
}

// absent is the status of a container the runtime has no instance of.
func (c computer) absent(out, was *v1.ContainerStatus, spec *v1.Container) {
	lost := was != nil && was.ContainerID != "" // it ran once
	if was != nil {
		out.RestartCount = was.RestartCount
		out.LastTerminationState = was.LastTerminationState
	}
	switch {
	case lost && was.State.Terminated != nil && (c.in.Done || c.initDone):
		*out = *was.DeepCopy() // ended, reported, and removed since
		return
	case lost:
		t := &v1.ContainerStateTerminated{ExitCode: 137, Reason: ReasonUnknown, ContainerID: was.ContainerID,
			Message: "The container could not be located when the pod was terminated"}
		if was.State.Running != nil {
			t.StartedAt = was.State.Running.StartedAt
		}
		out.ContainerID, out.ImageID = was.ContainerID, was.ImageID
		if c.in.Done {
			out.State.Terminated = t
			return
		}
		t.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
		out.LastTerminationState.Terminated = t
	}
	reason := v1.ContainerStateWaiting{Reason: ReasonContainerCreating}
	if len(c.in.Pod.Spec.InitContainers) > 0 && !c.initDone {
		reason.Reason = ReasonPodInitializing
		if len(c.in.Observed.Containers) == 0 && spec.Name == c.in.Pod.Spec.InitContainers[0].Name && c.in.Observed.ReadySandbox() != nil {
			reason.Reason = ReasonContainerCreating
		}
	}
	if w, ok := c.in.Waiting[spec.Name]; ok {
		reason = v1.ContainerStateWaiting{Reason: w.Reason, Message: w.Message}
	}
	out.State.Waiting = &reason
}

// known returns how an instance ended, as it was reported before if it was:
// the file with its message may be gone since.
func known(was *v1.ContainerStatus, c *pods.Container) *v1.ContainerStateTerminated {
	t := terminated(c)
	if was != nil {
		for _, w := range []*v1.ContainerStateTerminated{was.State.Terminated, was.LastTerminationState.Terminated} {
			if w != nil && w.ContainerID == t.ContainerID && w.Message != "" && t.Message == "" {
				return w.DeepCopy()
			}
		}
	}
	return t
}

func terminated(c *pods.Container) *v1.ContainerStateTerminated {
	reason := c.Reason
	if reason == "" {
		reason = "Error"
		if c.ExitCode == 0 {
			reason = "Completed"
		}
	}
	return &v1.ContainerStateTerminated{ExitCode: c.ExitCode, Reason: reason, Message: c.Message, ContainerID: "containerd://" + c.ID,
		StartedAt: second(c.StartedAt), FinishedAt: second(c.FinishedAt)}
}

// Reported returns what the API holds of one container instance's readiness;
// false for an instance it does not know.
func Reported(pod *v1.Pod, container, id string) (started, ready bool) {
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			if s.Name == container && s.ContainerID == "containerd://"+id {
				return s.Started != nil && *s.Started, s.Ready
			}
		}
	}
	return false, false
}

// second is t as the API keeps times.
func second(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

func mountStatuses(spec *v1.Container) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for _, m := range spec.VolumeMounts {
		s := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := v1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
				mode = v1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &mode
		}
		out = append(out, s)
	}
	return out
}

// initialized says whether every init container is done, or for sidecars
// started. A pod whose main containers ran has initialized.
func (c computer) initialized(list []v1.ContainerStatus) bool {
	for i := range c.in.Pod.Spec.Containers {
		if c.in.Observed.Newest(c.in.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return len(c.incomplete(list)) == 0
}

func (c computer) incomplete(list []v1.ContainerStatus) []string {
	var out []string
	for i := range list {
		s := &list[i]
		ok := s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		if pods.Restartable(&c.in.Pod.Spec.InitContainers[i]) {
			ok = s.Started != nil && *s.Started
		}
		if !ok {
			out = append(out, s.Name)
		}
	}
	return out
}

func (c computer) phase(st *v1.PodStatus, initialized bool) v1.PodPhase {
	pod := c.in.Pod
	if c.in.Done && !c.in.Observed.Live() {
		return c.outcome(st)
	}
	if !initialized {
		return v1.PodPending
	}
	running, waiting, stopped := 0, 0, 0
	for _, s := range st.ContainerStatuses {
		switch {
		case s.State.Running != nil:
			running++
		case s.State.Terminated != nil, s.LastTerminationState.Terminated != nil:
			stopped++
		default:
			waiting++
		}
	}
	if waiting > 0 && running == 0 && stopped == 0 || waiting > 0 && pod.Status.Phase != v1.PodRunning {
		return v1.PodPending
	}
	return v1.PodRunning
}

// outcome is the phase of a pod that has ended.
func (c computer) outcome(st *v1.PodStatus) v1.PodPhase {
	for i, s := range st.InitContainerStatuses {
		if t := s.State.Terminated; !pods.Restartable(&c.in.Pod.Spec.InitContainers[i]) && (t == nil || t.ExitCode != 0) {
			return v1.PodFailed
		}
	}
	for _, s := range st.ContainerStatuses {
		if t := s.State.Terminated; t == nil || t.ExitCode != 0 {
			return v1.PodFailed
		}
	}
	return v1.PodSucceeded
}

func (c computer) conditions(st *v1.PodStatus, initialized bool) {
	pod := c.in.Pod
	terminal := st.Phase == v1.PodSucceeded || st.Phase == v1.PodFailed
	set := func(t v1.PodConditionType, ok bool, reason, msg string) {
		status := v1.ConditionFalse
		if ok {
			status = v1.ConditionTrue
		}
		SetCondition(st, v1.PodCondition{Type: t, Status: status, Reason: reason, Message: msg, ObservedGeneration: pod.Generation}, c.in.Now)
	}
	sb := c.in.Observed.ReadySandbox()
	set(v1.PodReadyToStartContainers, sb != nil && (pod.Spec.HostNetwork || len(sb.IPs) > 0), "", "")
	switch {
	case st.Phase == v1.PodSucceeded:
		set(v1.PodInitialized, true, "PodCompleted", "")
	case initialized:
		set(v1.PodInitialized, true, "", "")
	default:
		set(v1.PodInitialized, false, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %v", c.incomplete(st.InitContainerStatuses)))
	}
	var unready []string
	for i, s := range st.InitContainerStatuses {
		if pods.Restartable(&pod.Spec.InitContainers[i]) && !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	for _, s := range st.ContainerStatuses {
		if !s.Ready {
			unready = append(unready, s.Name)
		}
	}
	reason, msg := "", ""
	switch {
	case st.Phase == v1.PodSucceeded:
		reason = "PodCompleted"
	case st.Phase == v1.PodFailed:
		reason = "PodFailed"
	case len(unready) > 0:
		reason, msg = "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready)
	}
	ready := len(unready) == 0 && !terminal
	set(v1.ContainersReady, ready, reason, msg)
	if ready {
		for _, g := range pod.Spec.ReadinessGates {
			i := slices.IndexFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == g.ConditionType })
			if i < 0 || st.Conditions[i].Status != v1.ConditionTrue {
				ready, reason = false, "ReadinessGatesNotReady"
				what := "condition %q does not exist"
				if i >= 0 {
					what = "the status of pod readiness gate %q is not \"True\""
				}
				msg = fmt.Sprintf(what, g.ConditionType)
			}
		}
	}
	set(v1.PodReady, ready, reason, msg)
	if !slices.ContainsFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled }) {
		set(v1.PodScheduled, true, "", "")
	}
}

// SetCondition puts a condition into a status; its transition time is now
// only if its status changes.
func SetCondition(st *v1.PodStatus, c v1.PodCondition, now time.Time) {
	c.LastTransitionTime = second(now)
	for i := range st.Conditions {
		if st.Conditions[i].Type == c.Type {
			if st.Conditions[i].Status == c.Status {
				c.LastTransitionTime = st.Conditions[i].LastTransitionTime
			}
			c.LastProbeTime = st.Conditions[i].LastProbeTime
			st.Conditions[i] = c
			return
		}
	}
	st.Conditions = append(st.Conditions, c)
}
