package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// bindTimeout bounds one request of a binding.
const bindTimeout = 30 * time.Second

// placer is one run of the loop.
type placer struct {
	*Scheduler
	recorder record.EventRecorder
	slots    chan struct{} // one for each request under way
	flight   sync.WaitGroup
}

// placeReady places every pod that is ready, and returns when to look again.
func (p *placer) placeReady(ctx context.Context) time.Time {
	for {
		p.mu.Lock()
		p.last = time.Now()
		next := p.queue.due(p.last)
		e := p.queue.pop(p.last)
		if e == nil || ctx.Err() != nil {
			p.mu.Unlock()
			return next
		}
		act := p.placeOne(ctx, e)
		p.mu.Unlock()
		if act.first != nil { // it may wait for minutes: not in a slot
			p.flight.Go(func() {
				if act.first() {
					p.slots <- struct{}{}
					defer func() { <-p.slots }()
					act.then()
				}
			})
			continue
		}
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return time.Time{}
		}
		p.flight.Go(func() {
			defer func() { <-p.slots }()
			act.then()
		})
	}
}

// action is what follows a decision: first, where it is set, says whether then is
// to be done.
type action struct {
	first func() bool
	then  func()
}

// placeOne decides on a pod, and returns what is to be told to the API. Its caller
// has the lock.
func (p *placer) placeOne(ctx context.Context, e *pending) action {
	pod := e.pod
	prof := p.profiles[pod.Spec.SchedulerName]
	d := p.engine.Decide(pod, prof)
	if d.Node != nil {
		p.metrics.decided(time.Since(p.last))
		held, err := p.reserve(pod, d.Node, prof)
		if err != nil {
			p.queue.retry(e, time.Now())
			return action{then: func() { p.explain(ctx, pod.Pod, err.Error(), nil) }}
		}
		node := d.Node.Name
		p.cluster.Nominate(pod, "")
		p.cluster.Assume(pod, node)
		p.queue.placed(e, time.Now())
		act := action{then: func() { p.bind(ctx, e, pod, node, held) }}
		if len(held) > 0 {
			act.first = func() bool { return p.commit(ctx, e, held) }
		}
		return act
	}
	var victims *engine.Victims
	if prof.Preempts {
		p.metrics.preempts.Inc()
		victims = p.engine.Preempt(pod, prof, d.Refusal)
	}
	now := time.Now()
	p.metrics.decided(now.Sub(p.last))
	p.metrics.refused(e, d.Refusal.Plugins, now)
	var by []plugin.Filter
	for _, f := range prof.Filters {
		if slices.Contains(d.Refusal.Plugins, f.Name()) {
			by = append(by, f)
		}
	}
	var cleared []*corev1.Pod
	var promised string
	if victims != nil {
		promised = victims.Node.Name // read here: the node may change when the lock is gone
		cleared = p.promise(pod, victims.Node)
	}
	p.queue.refuse(e, d.Shape, by, now)
	why := d.Refusal.String()
	return action{then: func() {
		if victims != nil {
			p.evict(ctx, e, pod, victims, promised, cleared)
			p.explain(ctx, pod.Pod, why, &promised)
			return
		}
		p.explain(ctx, pod.Pod, why, nil)
	}}
}

// bind makes the placement known. It is not tied to the end of the run: what was
// sent is waited for.
func (p *placer) bind(ctx context.Context, e *pending, pod *cluster.Pod, node string, held []plugin.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bindTimeout)
	defer cancel()
	err := p.cfg.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		// The request may have been carried out although its answer was lost.
		if now, gerr := p.cfg.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); gerr == nil && now.UID == pod.UID && now.Spec.NodeName != "" {
			err = nil
		}
	}
	if err == nil {
		p.metrics.bound(e, time.Now())
		p.recorder.Eventf(pod.Pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
		p.mu.Lock()
		p.queue.remove(pod.UID)
		releaseAll(held)
		p.mu.Unlock()
		return
	}
	p.giveUp(e, held)
	if apierrors.IsNotFound(err) {
		return // deleted meanwhile
	}
	p.log.Warn("binding failed, the pod is tried again", "pod", pod.Namespace+"/"+pod.Name, "node", node, "error", err)
	p.explain(ctx, pod.Pod, fmt.Sprintf("binding to node %s failed: %v", node, err), nil)
}

// explain says why a pod is pending, in an event and in its condition, and names
// the node that it was promised, where there is one.
func (p *placer) explain(ctx context.Context, pod *corev1.Pod, why string, promised *string) {
	p.recorder.Event(pod, corev1.EventTypeWarning, "FailedScheduling", shortened(why))
	said := promised == nil || pod.Status.NominatedNodeName == *promised
	for _, c := range pod.Status.Conditions {
		if said && c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && c.Message == why {
			return
		}
	}
	status := map[string]any{"conditions": []map[string]any{{
		"type": corev1.PodScheduled, "status": corev1.ConditionFalse, "reason": corev1.PodReasonUnschedulable,
		"message": why, "lastTransitionTime": since(pod, corev1.PodScheduled, corev1.ConditionFalse), "observedGeneration": pod.Generation,
	}}}
	if promised != nil {
		status["nominatedNodeName"] = *promised
	}
	p.patchStatus(ctx, pod, status)
}

// since is the transition time of a condition that may hold already.
func since(pod *corev1.Pod, t corev1.PodConditionType, status corev1.ConditionStatus) metav1.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == t && c.Status == status {
			return c.LastTransitionTime
		}
	}
	return metav1.Now()
}

// longestNote is how long the message of an event may be.
const longestNote = 1024

func shortened(s string) string {
	const dots = " ..."
	if len(s) <= longestNote {
		return s
	}
	return s[:longestNote-len(dots)] + dots
}

// patchStatus changes parts of a pod's status, and says whether it is done or the
// pod is gone.
func (p *placer) patchStatus(ctx context.Context, pod *corev1.Pod, status map[string]any) bool {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		p.log.Error("status not encoded", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	_, err = p.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return true // a conflict is of the UID: another pod has the name now
	}
	if ctx.Err() == nil {
		p.log.Warn("status of a pod not written", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
	return false
}
