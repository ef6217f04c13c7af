package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

const (
	senders     = 4
	sendTimeout = 15 * time.Second
)

// Manager sends pod statuses to the API: each change once, the newest only,
// again with growing delays while the API does not answer.
type Manager struct {
	client kubernetes.Interface
	log    *slog.Logger
	// sent is told the pod as the API holds it after a change.
	sent  func(*v1.Pod)
	queue workqueue.TypedRateLimitingInterface[types.UID]

	mu   sync.Mutex
	want map[types.UID]*v1.Pod // pod with the status it shall have
	have map[types.UID]*v1.Pod // pod as the API last told
}

// NewManager makes a Manager. sent is called with what the API answered, from
// the manager's goroutines.
func NewManager(client kubernetes.Interface, log *slog.Logger, sent func(*v1.Pod)) *Manager {
	return &Manager{client: client, log: log, sent: sent, want: map[types.UID]*v1.Pod{}, have: map[types.UID]*v1.Pod{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](200*time.Millisecond, 10*time.Second))}
}

// Set wants pod to have the given status. pod is as the API last told.
func (m *Manager) Set(pod *v1.Pod, st v1.PodStatus) {
	w := pod.DeepCopy()
	w.Status = st
	m.mu.Lock()
	m.want[pod.UID] = w
	m.have[pod.UID] = pod
	m.mu.Unlock()
	if !Equal(pod.Status, st) {
		m.queue.Add(pod.UID)
	}
}

// Equal says whether two statuses are the same to the API.
func Equal(a, b v1.PodStatus) bool { return apiequality.Semantic.DeepEqual(a, b) }

// Forget ends the sending for a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.want, uid)
	delete(m.have, uid)
}

// Run sends until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for {
				uid, stop := m.queue.Get()
				if stop {
					return
				}
				if err := m.Flush(ctx, uid); err != nil && ctx.Err() == nil {
					m.log.Warn("pod status not sent, will try again", "uid", uid, "err", err)
					m.queue.AddRateLimited(uid)
				} else {
					m.queue.Forget(uid)
				}
				m.queue.Done(uid)
			}
		})
	}
	<-ctx.Done()
	m.queue.ShutDown()
	wg.Wait()
}

// Flush sends the status a pod shall have, if it differs from what the API
// holds. A pod that is gone, or another of the same name, is not an error.
func (m *Manager) Flush(ctx context.Context, uid types.UID) error {
	m.mu.Lock()
	want, have := m.want[uid], m.have[uid]
	m.mu.Unlock()
	if want == nil || Equal(have.Status, want.Status) {
		return nil
	}
	patch, err := patchOf(have, want)
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", want.Namespace, want.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	got, err := m.client.CoreV1().Pods(want.Namespace).Patch(ctx, want.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or a successor with another UID
		m.Forget(uid)
		return nil
	}
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", want.Namespace, want.Name, err)
	}
	m.mu.Lock()
	if m.have[uid] == have {
		m.have[uid] = got
	}
	m.mu.Unlock()
	if m.sent != nil {
		m.sent(got)
	}
	return nil
}

func patchOf(have, want *v1.Pod) ([]byte, error) {
	a, err := json.Marshal(&v1.Pod{Status: have.Status})
	if err != nil {
		return nil, err
	}
	// The UID makes the patch fail on another pod of the same name.
	b, err := json.Marshal(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: want.UID}, Status: want.Status})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(a, b, v1.Pod{})
}

// Delete sends the last status and then removes the pod from the API at once.
// A pod that is gone already is not an error.
func (m *Manager) Delete(ctx context.Context, pod *v1.Pod) error {
	if err := m.Flush(ctx, pod.UID); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	grace := int64(0)
	err := m.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
