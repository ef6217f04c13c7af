package runtime

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// PodWriter creates and deletes pods for their owners, tells of it by events on
// the owner, and keeps the expectations.
type PodWriter struct {
	Client   kubernetes.Interface
	Events   record.EventRecorder
	InFlight *Expectations
}

// Create creates the pods, all for the owner with the queue key, by SlowStart. A
// namespace that is ending is no error; a name of the caller's choice that is
// taken is one that is Silent. It returns how many were created.
func (w PodWriter) Create(ctx context.Context, key string, owner apiruntime.Object, pods []*corev1.Pod) (int, error) {
	if len(pods) == 0 {
		return 0, nil
	}
	w.InFlight.ExpectCreations(key, len(pods))
	var next, created atomic.Int64
	tried, err := SlowStart(len(pods), func() error {
		pod := pods[next.Add(1)-1]
		got, err := w.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case err == nil:
			created.Add(1)
			w.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %s", got.Name)
		case NamespaceEnding(err):
			w.InFlight.CreationObserved(key)
			return nil
		case apierrors.IsAlreadyExists(err) && pod.GenerateName == "":
			return Silent(err) // the cache will show it
		default:
			w.Events.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	})
	for range len(pods) - tried {
		w.InFlight.CreationObserved(key)
	}
	if err != nil {
		return int(created.Load()), fmt.Errorf("create pod: %w", err)
	}
	return int(created.Load()), nil
}

// Delete deletes the pods, all of the owner with the queue key, many at once.
// Pods that are gone already are no error.
func (w PodWriter) Delete(ctx context.Context, key string, owner apiruntime.Object, pods []*corev1.Pod) error {
	for _, pod := range pods {
		w.InFlight.ExpectDeletion(key, pod.UID)
	}
	errs := make([]error, len(pods))
	Parallel(len(pods), 32, func(i int) {
		pod := pods[i]
		err := w.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if err == nil {
			w.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %s", pod.Name)
			return
		}
		w.InFlight.DeletionObserved(key, pod.UID)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return // gone already, or another pod of its name
		}
		w.Events.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		errs[i] = err
	})
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("delete pod: %w", err)
		}
	}
	return nil
}

// PatchPods returns what a Claim of pods patches with.
func PatchPods(client kubernetes.Interface, namespace string) func(ctx context.Context, name string, patch []byte) error {
	return func(ctx context.Context, name string, patch []byte) error {
		_, err := client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}
