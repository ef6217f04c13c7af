package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
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
		e := p.queue.pop()
		if e == nil || ctx.Err() != nil {
			p.mu.Unlock()
			return next
		}
		p.turn++
		node, refusal := decide(e.pod, view{p.Scheduler}, p.turn)
		p.metrics.decided(time.Since(p.last), refusal == nil)
		pod := e.pod
		if refusal != nil {
			p.queue.refuse(e, refusal.Wakes, time.Now())
		} else {
			p.cluster.Assume(pod, node.Name)
		}
		var nodeName string
		if node != nil {
			nodeName = node.Name
		}
		p.mu.Unlock()
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return time.Time{}
		}
		p.flight.Go(func() {
			defer func() { <-p.slots }()
			if refusal != nil {
				p.explain(ctx, pod.Pod, refusal.String())
			} else {
				p.bind(ctx, e, pod, nodeName)
			}
		})
	}
}

// bind makes the placement known. It is not tied to the end of the run: what was
// sent is waited for.
func (p *placer) bind(ctx context.Context, e *pending, pod *cluster.Pod, node string) {
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
		p.metrics.bound(time.Since(e.since))
		p.recorder.Eventf(pod.Pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node)
		p.mu.Lock()
		p.queue.remove(pod.UID)
		p.mu.Unlock()
		return
	}
	p.metrics.failed()
	p.mu.Lock()
	p.cluster.Forget(pod.UID)
	p.queue.retry(e, time.Now())
	p.mu.Unlock()
	p.kick()
	if apierrors.IsNotFound(err) {
		return // deleted meanwhile
	}
	p.log.Warn("binding failed, the pod is tried again", "pod", pod.Namespace+"/"+pod.Name, "node", node, "error", err)
	p.explain(ctx, pod.Pod, fmt.Sprintf("binding to node %s failed: %v", node, err))
}

// explain says why a pod is pending, in an event and in its condition.
func (p *placer) explain(ctx context.Context, pod *corev1.Pod, why string) {
	p.recorder.Event(pod, corev1.EventTypeWarning, "FailedScheduling", why)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && c.Message == why {
			return
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []map[string]any{{
			"type": corev1.PodScheduled, "status": corev1.ConditionFalse, "reason": corev1.PodReasonUnschedulable,
			"message": why, "lastTransitionTime": metav1.Now(), "observedGeneration": pod.Generation,
		}}},
	})
	if err != nil {
		p.log.Error("condition not encoded", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	_, err = p.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		p.log.Warn("condition of a pending pod not written", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
}
