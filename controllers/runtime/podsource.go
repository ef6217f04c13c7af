package runtime

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// PodEvents turn what happens to pods into keys of their owners.
type PodEvents struct {
	Queue Queue
	// Kind is that of the owners.
	Kind schema.GroupKind
	// Owner returns an owner from the cache.
	Owner func(namespace, name string) (metav1.Object, error)
	// Adopters returns the owners that may adopt an orphan.
	Adopters func(orphan *corev1.Pod) []metav1.Object
	// InFlight is told which creations and deletions the cache shows; may be nil.
	InFlight *Expectations
}

// Source makes a source of the pod informer.
func (e PodEvents) Source(pods cache.SharedInformer) Source {
	return On(pods, Handlers[*corev1.Pod]{Add: e.added, Update: e.updated, Delete: e.deleted})
}

// key returns the key of the owner that controls pod, if it exists.
func (e PodEvents) key(pod *corev1.Pod) (string, bool) {
	key, uid, ok := ControllerKey(pod, e.Kind)
	if !ok {
		return "", false
	}
	owner, err := e.Owner(pod.Namespace, key[len(pod.Namespace)+1:])
	if err != nil || owner.GetUID() != uid {
		return "", false
	}
	return key, true
}

func (e PodEvents) added(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		e.deleted(pod)
		return
	}
	if key, ok := e.key(pod); ok {
		if e.InFlight != nil {
			e.InFlight.CreationObserved(key)
		}
		e.Queue.Add(key)
	} else if metav1.GetControllerOf(pod) == nil {
		e.offer(pod)
	}
}

func (e PodEvents) updated(o, n *corev1.Pod) {
	if o.ResourceVersion == n.ResourceVersion && o.ResourceVersion != "" {
		return
	}
	if o.UID != n.UID { // deleted and made anew between two events
		e.deleted(o)
		e.added(n)
		return
	}
	oldKey, hadOwner := e.key(o)
	key, hasOwner := e.key(n)
	if hadOwner && (!hasOwner || oldKey != key) {
		e.Queue.Add(oldKey)
	}
	if n.DeletionTimestamp != nil {
		// The grace period may be long: the replacement does not wait for it.
		e.deleted(n)
		return
	}
	if hasOwner {
		e.Queue.Add(key)
	} else if metav1.GetControllerOf(n) == nil && (hadOwner || !equality.Semantic.DeepEqual(o.Labels, n.Labels)) {
		e.offer(n)
	}
}

func (e PodEvents) deleted(pod *corev1.Pod) {
	if key, ok := e.key(pod); ok {
		if e.InFlight != nil {
			e.InFlight.DeletionObserved(key, pod.UID)
		}
		e.Queue.Add(key)
	}
}

func (e PodEvents) offer(pod *corev1.Pod) {
	for _, o := range e.Adopters(pod) {
		e.Queue.Add(o.GetNamespace() + "/" + o.GetName())
	}
}

// Objects converts a lister's result to what Adopters returns; err, which says
// that nothing matches, gives none.
func Objects[T metav1.Object](all []T, err error) []metav1.Object {
	if err != nil {
		return nil
	}
	out := make([]metav1.Object, len(all))
	for i, o := range all {
		out[i] = o
	}
	return out
}

// OwnWithExpectations is Own for owners whose dependents are counted in
// Expectations, which end with the owner.
func OwnWithExpectations[T metav1.Object](q Queue, informer cache.SharedInformer, inFlight *Expectations) Source {
	key := func(o T) string { return o.GetNamespace() + "/" + o.GetName() }
	return On(informer, Handlers[T]{
		Add: func(o T) { q.Add(key(o)) },
		Update: func(o, n T) {
			if o.GetUID() != n.GetUID() { // deleted and made anew between two events
				inFlight.Forget(key(o))
			}
			q.Add(key(n))
		},
		Delete: func(o T) {
			inFlight.Forget(key(o))
			q.Add(key(o))
		},
	})
}
