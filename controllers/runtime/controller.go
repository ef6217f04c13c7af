package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// Defaults of a Controller's fields.
const (
	DefaultWorkers  = 5
	DefaultDeadline = 5 * time.Minute
)

// Deps is what the controllers are given. All fields are set and shared; none
// may be changed.
type Deps struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Recorder  record.EventRecorder
	Log       *slog.Logger
	Clock     clock.Clock
}

// Queue takes keys to reconcile. It is safe for use by many goroutines; a key
// that waits already is not added twice.
type Queue interface {
	Add(key string)
	AddAfter(key string, d time.Duration)
}

// Builder makes one instance of a controller that takes its keys from q. It is
// called again after every failure and must not carry state over.
type Builder func(q Queue) (Controller, error)

// Controller describes one instance.
type Controller struct {
	// Workers is how many keys are reconciled at once; DefaultWorkers when 0.
	Workers int
	// Deadline bounds one Reconcile; DefaultDeadline when 0.
	Deadline time.Duration
	// Sources feed the queue. Their informers are waited for.
	Sources []Source
	// Private informers belong to this instance alone: it runs them, waits for
	// them and ends them.
	Private []cache.SharedInformer
	// Synced are further caches that must be filled before the first Reconcile.
	Synced []cache.InformerSynced
	// Reconcile handles one key. A positive duration asks for another call after
	// it; an error asks for one with exponential backoff (see Silent). Nil when
	// the controller has only background loops.
	Reconcile func(ctx context.Context, key string) (time.Duration, error)
	// Explain says what an object waits for, from the caches and from what the
	// controller remembers; nil when its objects wait for nothing worth saying.
	// It returns nothing for an object that has all that it asks for, and a
	// NotFound error for one that is not there. It is called beside Reconcile.
	Explain func(namespace, name string) ([]Wait, error)
	// Background loops run beside the workers, from when the caches are filled
	// until ctx ends. One that returns early or panics fails the instance.
	Background []func(ctx context.Context) error
}

// Wait is one thing that an object waits for.
type Wait struct {
	// For is what has not happened yet, and why.
	For string `json:"for"`
	// By is who decided it or has to act: "scheduler", "controller job", "kubelet
	// on node a", "finalizer example.com/x", "you".
	By string `json:"by"`
}

// Source is an informer and what its events mean.
type Source struct {
	informer cache.SharedInformer
	handler  cache.ResourceEventHandler
}

// Handlers say what an event means; each may be nil. They run one at a time,
// must be quick, and must not change what they are given.
type Handlers[T any] struct {
	Add    func(obj T)
	Update func(old, new T)
	// Delete gets the last known state, which may be old when the deletion was
	// missed.
	Delete func(obj T)
}

// On makes a source of an informer whose objects are of type T. Other objects
// are ignored.
func On[T any](informer cache.SharedInformer, h Handlers[T]) Source {
	return Source{informer: informer, handler: cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if obj, ok := o.(T); ok && h.Add != nil {
				h.Add(obj)
			}
		},
		UpdateFunc: func(o, n any) {
			oldObj, ok1 := o.(T)
			newObj, ok2 := n.(T)
			if ok1 && ok2 && h.Update != nil {
				h.Update(oldObj, newObj)
			}
		},
		DeleteFunc: func(o any) {
			if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if obj, ok := o.(T); ok && h.Delete != nil {
				h.Delete(obj)
			}
		},
	}}
}

// Each makes a source that calls f for every event: with the object for an
// addition or deletion, with the old and the new one for an update.
func Each[T any](informer cache.SharedInformer, f func(obj T)) Source {
	return On(informer, Handlers[T]{Add: f, Delete: f, Update: func(o, n T) { f(o); f(n) }})
}

// Own makes a source that queues every object of the informer by its own key,
// namespace/name or name.
func Own(q Queue, informer cache.SharedInformer) Source {
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			q.Add(key)
		}
	}
	return Source{informer: informer, handler: cache.ResourceEventHandlerFuncs{
		AddFunc: add, DeleteFunc: add, UpdateFunc: func(_, n any) { add(n) },
	}}
}

// Silent marks an error that is part of normal work, such as a write that lost
// a race: the key is retried like after any error, but the error is not shown
// as the controller's last one and is logged at debug level only.
func Silent(err error) error {
	if err == nil {
		return nil
	}
	return silent{err}
}

type silent struct{ error }

func (s silent) Unwrap() error { return s.error }

func isSilent(err error) bool {
	var s silent
	return errors.As(err, &s) || apierrors.IsConflict(err)
}

// NamespaceEnding reports whether err refuses a creation because the namespace
// is gone or going, so that a retry is of no use.
func NamespaceEnding(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// SplitKey takes a key of Own apart.
func SplitKey(key string) (namespace, name string, err error) {
	namespace, name, err = cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return "", "", fmt.Errorf("queue key %q is not namespace/name: %w", key, err)
	}
	return namespace, name, nil
}
