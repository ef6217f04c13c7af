package scheduling

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	f := s.cfg.Informers
	core, st, apps := f.Core().V1(), f.Storage().V1(), f.Apps().V1()
	// Namespaces come first: pods are matched against their labels.
	err = errors.Join(
		add(core.Namespaces().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setNamespace(o.(*corev1.Namespace)) },
			UpdateFunc: func(_, o any) { s.setNamespace(o.(*corev1.Namespace)) },
			DeleteFunc: func(o any) { s.removeNamespace(deleted[*corev1.Namespace](o)) },
		}),
		add(core.Nodes().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setNode(nil, o.(*corev1.Node)) },
			UpdateFunc: func(old, o any) { s.setNode(old.(*corev1.Node), o.(*corev1.Node)) },
			DeleteFunc: func(o any) { s.removeNode(deleted[*corev1.Node](o)) },
		}),
		add(core.Pods().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.setPod(nil, o.(*corev1.Pod)) },
			UpdateFunc: func(old, o any) { s.setPod(old.(*corev1.Pod), o.(*corev1.Pod)) },
			DeleteFunc: func(o any) { s.removePod(deleted[*corev1.Pod](o)) },
		}))
	for _, i := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), st.StorageClasses().Informer(),
		st.CSINodes().Informer(), st.CSIDrivers().Informer(), st.CSIStorageCapacities().Informer(), st.VolumeAttachments().Informer()} {
		err = errors.Join(err, add(i, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { s.storageChanged() },
			UpdateFunc: func(old, o any) { s.storageUpdated(old, o) },
			DeleteFunc: func(any) { s.storageChanged() },
		}))
	}
	err = errors.Join(err, add(core.Services().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.servicesChanged() },
		UpdateFunc: func(old, o any) {
			if !maps.Equal(old.(*corev1.Service).Spec.Selector, o.(*corev1.Service).Spec.Selector) {
				s.servicesChanged()
			}
		},
		DeleteFunc: func(any) { s.servicesChanged() },
	}))
	for _, i := range []cache.SharedIndexInformer{core.ReplicationControllers().Informer(), apps.ReplicaSets().Informer(), apps.StatefulSets().Informer()} {
		err = errors.Join(err, add(i, cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { s.ownerCame(o.(metav1.Object)) }}))
	}
	err = errors.Join(err, add(f.Policy().V1().PodDisruptionBudgets().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.budgetsChanged() }, UpdateFunc: func(any, any) { s.budgetsChanged() }, DeleteFunc: func(any) { s.budgetsChanged() },
	}))
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
	s.tell(plugin.Change{Kind: ev, Node: s.cluster.Get(n.Name)})
}

func (s *Scheduler) removeNode(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone := s.cluster.Get(n.Name); gone != nil {
		for _, p := range slices.Clone(gone.Nominated) {
			s.cluster.Nominate(p, "") // and so it is woken like any other
		}
	}
	s.cluster.RemoveNode(n.Name)
	// A domain may have gone with it, which is what spreading looks at.
	s.tell(plugin.Change{Kind: plugin.NodeLabels})
}

func (s *Scheduler) setNamespace(n *corev1.Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.cluster.NamespaceLabels(n.Name); old == nil || !maps.Equal(old, n.Labels) {
		l := labels.Set(n.Labels)
		if l == nil {
			l = labels.Set{}
		}
		s.cluster.SetNamespace(n.Name, l)
		s.tell(plugin.Change{Kind: plugin.NamespaceLabels})
	}
}

func (s *Scheduler) removeNamespace(n *corev1.Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.RemoveNamespace(n.Name)
}

// ended says whether a pod takes no room any more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (s *Scheduler) setPod(old, p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old != nil && old.UID != p.UID { // deleted and made anew between two looks
		s.forgetPod(old)
		old = nil
	}
	s.takePod(p, old)
}

func (s *Scheduler) takePod(p, old *corev1.Pod) {
	switch {
	case ended(p):
		s.forgetPod(p)
	case p.Spec.NodeName != "":
		s.takePlaced(p, old)
	case p.DeletionTimestamp != nil || s.profiles[p.Spec.SchedulerName] == nil:
		s.forgetPending(p)
	case !s.cluster.Counted(p.UID): // else it is assumed, and being bound
		q := cluster.NewPod(p)
		s.nominate(q, old)
		if s.queue.byUID[p.UID] == nil {
			s.metrics.came("active", "PodAdd")
		}
		s.queue.set(q, time.Now())
		s.kick()
	}
}

func (s *Scheduler) takePlaced(p, old *corev1.Pod) {
	known := s.cluster.Counted(p.UID)
	if known && old != nil && old.Spec.NodeName == p.Spec.NodeName && sameToOthers(old, p) {
		return // its status alone
	}
	s.forgetPending(p)
	q := cluster.NewPod(p)
	s.cluster.SetPod(q)
	n := s.cluster.Get(p.Spec.NodeName)
	switch {
	case !known || old != nil && !maps.Equal(old.Labels, p.Labels):
		s.tell(plugin.Change{Kind: plugin.PodPlaced, Node: n, Pod: q})
	case old != nil:
		s.tell(plugin.Change{Kind: plugin.PodRemoved, Node: n, Pod: q})
	}
}

// sameToOthers says whether a placed pod is to the others what it was: its room,
// its labels, and whether it is being deleted.
func sameToOthers(old, p *corev1.Pod) bool {
	return old.Generation == p.Generation && maps.Equal(old.Labels, p.Labels) && (old.DeletionTimestamp == nil) == (p.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(cluster.OfPod(old), cluster.OfPod(p))
}

// nominate notes the node that a pending pod has been promised, by this scheduler
// or, as its status says, by an earlier one.
func (s *Scheduler) nominate(p *cluster.Pod, old *corev1.Pod) {
	node := s.cluster.NominatedOn(p.UID)
	switch {
	case p.Status.NominatedNodeName != "":
		node = p.Status.NominatedNodeName
	case old != nil && old.Status.NominatedNodeName != "":
		node = "" // taken back
	}
	s.cluster.Nominate(p, node)
}

func (s *Scheduler) removePod(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetPod(p)
}

func (s *Scheduler) forgetPod(p *corev1.Pod) {
	s.forgetPending(p)
	if q, n := s.cluster.Lookup(p.UID); q != nil {
		s.cluster.RemovePod(p.UID)
		s.tell(plugin.Change{Kind: plugin.PodRemoved, Node: n, Pod: q})
	}
}

// forgetPending ends the wait of a pod, and what it was promised.
func (s *Scheduler) forgetPending(p *corev1.Pod) {
	s.queue.remove(p.UID)
	if name := s.cluster.NominatedOn(p.UID); name != "" {
		s.cluster.Nominate(&cluster.Pod{Pod: p}, "")
		if p.Spec.NodeName == "" { // it will not come: the room is free for others
			s.tell(plugin.Change{Kind: plugin.PodRemoved, Node: s.cluster.Get(name)})
		}
	}
}

func (s *Scheduler) storageUpdated(old, o any) {
	a, b := old.(metav1.Object), o.(metav1.Object)
	if a.GetResourceVersion() != b.GetResourceVersion() {
		s.storageChanged()
	}
}

func (s *Scheduler) storageChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(plugin.Change{Kind: plugin.StorageChanged})
}

func (s *Scheduler) servicesChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.ServicesChanged()
}

func (s *Scheduler) budgetsChanged() {
	b := s.objects.Budgets()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.SetBudgets(b)
}

func (s *Scheduler) ownerCame(o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.OwnerCame(o.GetUID())
}

// tell wakes whom a change can help; its holder has the lock.
func (s *Scheduler) tell(c plugin.Change) {
	for k := plugin.Event(1); k != 0 && k <= c.Kind; k <<= 1 {
		if c.Kind&k != 0 {
			one := c
			one.Kind = k
			s.queue.happened(one, time.Now())
		}
	}
	if c.Kind != 0 {
		s.kick()
	}
}
