package scheduling

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
)

// promise keeps the room on the node for the pod, and takes it from less important
// pods that were promised it before; those are returned and look for another. Its
// caller has the lock.
func (s *Scheduler) promise(p *cluster.Pod, n *cluster.Node) (cleared []*corev1.Pod) {
	for _, q := range append([]*cluster.Pod(nil), n.Nominated...) {
		if q.Priority >= p.Priority || q.UID == p.UID {
			continue
		}
		s.cluster.Nominate(q, "")
		cleared = append(cleared, q.Pod)
		if e := s.queue.byUID[q.UID]; e != nil && e.at == waiting {
			s.queue.wake(e, time.Now())
		}
	}
	s.cluster.Nominate(p, n.Name)
	return cleared
}

// evict makes the victims go. The pod that they make room for is tried again when
// they are gone, and after a pause where that cannot be reached.
func (p *placer) evict(ctx context.Context, e *pending, pod *cluster.Pod, v *engine.Victims, node string, cleared []*corev1.Pod) {
	p.metrics.preempted(len(v.Pods))
	for _, q := range cleared {
		p.patchStatus(ctx, q, map[string]any{"nominatedNodeName": nil})
	}
	for _, q := range v.Pods {
		if q.DeletionTimestamp != nil {
			continue
		}
		if err := p.evictOne(ctx, pod, q, node); err != nil {
			if ctx.Err() != nil {
				return
			}
			p.log.Warn("a pod is not preempted, the one that needs its room is tried again", "pod", q.Namespace+"/"+q.Name, "for", pod.Namespace+"/"+pod.Name, "error", err)
			p.mu.Lock()
			if e.at == waiting {
				p.queue.retry(e, time.Now())
			}
			p.mu.Unlock()
			p.kick()
			return
		}
	}
}

// evictOne says on the victim why it goes, and deletes it.
func (p *placer) evictOne(ctx context.Context, pod, victim *cluster.Pod, node string) error {
	const kind = corev1.DisruptionTarget
	ok := p.patchStatus(ctx, victim.Pod, map[string]any{"conditions": []map[string]any{{
		"type": kind, "status": corev1.ConditionTrue, "reason": corev1.PodReasonPreemptionByScheduler,
		"message":            pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
		"lastTransitionTime": since(victim.Pod, kind, corev1.ConditionTrue), "observedGeneration": victim.Generation,
	}}})
	if !ok {
		return fmt.Errorf("the condition %s of %s/%s cannot be written", kind, victim.Namespace, victim.Name)
	}
	dctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	err := p.cfg.Client.CoreV1().Pods(victim.Namespace).Delete(dctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	p.recorder.Eventf(victim.Pod, corev1.EventTypeNormal, "Preempted", "Preempted by pod %v on node %v", pod.UID, node)
	return nil
}
