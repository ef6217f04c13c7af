package scheduling

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// watch fills the cluster and the queue from the informers and keeps them. stop
// takes the handlers off again.
func (s *Scheduler) watch(ctx context.Context) (stop func(), err error) {
	var undo []func()
	stop = func() {
		for _, f := range undo {
			f()
		}
	}
	var synced []cache.InformerSynced
	add := func(i cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
		r, err := i.AddEventHandler(h)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		undo = append(undo, func() { _ = i.RemoveEventHandler(r) }) // fails only on a foreign handle
		synced = append(synced, r.HasSynced)
		return nil
	}
	err = errors.Join(
		add(s.nodes, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setNode(nil, o.(*corev1.Node)) },
			UpdateFunc: func(old, o any) { s.setNode(old.(*corev1.Node), o.(*corev1.Node)) },
			DeleteFunc: func(o any) { s.removeNode(deleted[*corev1.Node](o)) },
		}),
		add(s.pods, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setPod(nil, o.(*corev1.Pod)) },
			UpdateFunc: func(old, o any) { s.setPod(old.(*corev1.Pod), o.(*corev1.Pod)) },
			DeleteFunc: func(o any) { s.removePod(deleted[*corev1.Pod](o)) },
		}))
	for i, ev := range []plugin.Event{plugin.StorageChanged, plugin.StorageChanged, plugin.NamespaceLabels} {
		err = errors.Join(err, add(s.others[i], cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { s.happened(ev) },
			UpdateFunc: func(any, any) { s.happened(ev) },
		}))
	}
	if err != nil {
		return stop, err
	}
	s.cfg.Informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) && ctx.Err() == nil {
		return stop, errors.New("the caches did not fill")
	}
	return stop, nil
}

func deleted[T any](o any) T {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	return o.(T)
}

func (s *Scheduler) setNode(old, n *corev1.Node) {
	var ev plugin.Event
	if old == nil {
		ev = plugin.NodeAdded
	} else {
		if !equality.Semantic.DeepEqual(old.Status.Allocatable, n.Status.Allocatable) {
			ev |= plugin.NodeAllocatable
		}
		if !maps.Equal(old.Labels, n.Labels) {
			ev |= plugin.NodeLabels
		}
		if old.Spec.Unschedulable != n.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) {
			ev |= plugin.NodeTaints
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.SetNode(n)
	s.tell(ev)
}

func (s *Scheduler) removeNode(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.RemoveNode(n.Name)
}

// ended says whether a pod takes no room any more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (s *Scheduler) setPod(old, p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case old != nil && old.UID != p.UID: // deleted and made anew between two looks
		s.forgetPod(old)
		fallthrough
	default:
		s.takePod(p, old)
	}
}

func (s *Scheduler) takePod(p, old *corev1.Pod) {
	switch {
	case ended(p):
		s.forgetPod(p)
	case p.Spec.NodeName != "":
		known := s.cluster.Counted(p.UID)
		q := cluster.NewPod(p)
		s.cluster.SetPod(q)
		s.queue.remove(p.UID)
		switch {
		case !known || old != nil && !maps.Equal(old.Labels, p.Labels):
			s.tell(plugin.PodPlaced)
		case old != nil && (old.DeletionTimestamp == nil) != (p.DeletionTimestamp == nil), old != nil && !equality.Semantic.DeepEqual(old.Spec.Containers, p.Spec.Containers):
			s.tell(plugin.PodRemoved)
		}
	case p.DeletionTimestamp != nil || p.Spec.SchedulerName != s.cfg.Name || len(p.Spec.SchedulingGates) > 0:
		s.queue.remove(p.UID)
	case !s.cluster.Counted(p.UID): // else it is assumed, and being bound
		s.queue.set(cluster.NewPod(p), time.Now())
		s.kick()
	}
}

func (s *Scheduler) removePod(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetPod(p)
}

func (s *Scheduler) forgetPod(p *corev1.Pod) {
	s.queue.remove(p.UID)
	if s.cluster.Counted(p.UID) {
		s.cluster.RemovePod(p.UID)
		s.tell(plugin.PodRemoved)
	}
}

func (s *Scheduler) happened(ev plugin.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(ev)
}

func (s *Scheduler) tell(ev plugin.Event) {
	if ev != 0 {
		s.queue.happened(ev, time.Now())
		s.kick()
	}
}
