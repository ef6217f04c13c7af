package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

const (
	// batch is how long changes of pods are gathered before their Job is looked
	// at: a Job of many short pods is not written for each of them.
	batch = 250 * time.Millisecond
	// settling is how long after the start the cache is not trusted to show an
	// earlier leader's last writes.
	settling = 5 * time.Minute
	// orphanKey marks queue keys of pods, against those of Jobs.
	orphanKey = "pod:"
)

type controller struct {
	client   kubernetes.Interface
	jobs     batchlisters.JobLister
	lister   corelisters.PodLister
	pods     runtime.PodIndex
	writer   runtime.PodWriter
	inFlight *runtime.Expectations
	stripped *strippedPods
	started  time.Time
	events   record.EventRecorder
	clock    clock.PassiveClock
	queue    runtime.Queue
}

// batching delays keys so that events that follow closely are handled together.
type batching struct{ runtime.Queue }

func (b batching) Add(key string) { b.AddAfter(key, batch) }

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	jobs, pods := d.Informers.Batch().V1().Jobs(), d.Informers.Core().V1().Pods()
	index, err := runtime.NewPodIndex(pods.Informer())
	if err != nil {
		return runtime.Controller{}, err
	}
	inFlight := runtime.NewExpectations(d.Clock.Now)
	c := &controller{
		client: d.Client, jobs: jobs.Lister(), lister: pods.Lister(), pods: index,
		writer:   runtime.PodWriter{Client: d.Client, Events: d.Recorder, InFlight: inFlight},
		inFlight: inFlight, stripped: newStrippedPods(), started: d.Clock.Now(),
		events: d.Recorder, clock: d.Clock, queue: q,
	}
	events := runtime.PodEvents{
		Queue: batching{q}, Kind: kind.GroupKind(), InFlight: inFlight,
		Owner: func(namespace, name string) (metav1.Object, error) { return c.jobs.Jobs(namespace).Get(name) },
		Adopters: func(pod *corev1.Pod) []metav1.Object {
			found, err := c.jobs.GetPodJobs(pod)
			out := make([]metav1.Object, len(found))
			for i := range found {
				out[i] = &found[i]
			}
			return runtime.Objects(out, err)
		},
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.OwnWithExpectations[*batchv1.Job](q, jobs.Informer(), inFlight),
			runtime.On(jobs.Informer(), runtime.Handlers[*batchv1.Job]{Delete: c.jobDeleted}),
			events.Source(pods.Informer()),
			runtime.On(pods.Informer(), runtime.Handlers[*corev1.Pod]{
				Add:    c.podSeen,
				Update: func(_, pod *corev1.Pod) { c.podSeen(pod) },
				Delete: func(pod *corev1.Pod) { c.stripped.forget(pod.UID) },
			}),
		},
		Reconcile: c.reconcile,
		Explain:   c.explain,
	}, nil
}

// jobDeleted queues the pods of a Job that is gone, which nobody counts.
func (c *controller) jobDeleted(job *batchv1.Job) {
	for _, pod := range c.pods.OwnedBy(job.UID) {
		c.podSeen(pod)
	}
}

// podSeen notes what the cache shows of a pod, and queues one with the finalizer
// whose Job is gone.
func (c *controller) podSeen(pod *corev1.Pod) {
	if !hasFinalizer(pod) {
		c.stripped.forget(pod.UID)
		return
	}
	if c.orphaned(pod) {
		c.queue.Add(orphanKey + pod.Namespace + "/" + pod.Name)
	}
}

// orphaned reports whether the cache knows no Job that owns pod or may adopt it.
func (c *controller) orphaned(pod *corev1.Pod) bool {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		jobs, err := c.jobs.GetPodJobs(pod)
		return err != nil || len(jobs) == 0
	}
	_, uid, ok := runtime.ControllerKey(pod, kind.GroupKind())
	if !ok {
		return false
	}
	job, err := c.jobs.Jobs(pod.Namespace).Get(ref.Name)
	return apierrors.IsNotFound(err) || err == nil && job.UID != uid
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if pod, ok := strings.CutPrefix(key, orphanKey); ok {
		return 0, c.release(ctx, pod)
	}
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	job, err := c.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.inFlight.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if m := job.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		return 0, nil // another controller's
	}
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of job %s: %w", key, err)
	}
	// Asked before the cache is read: what is satisfied now is in it.
	settled := c.inFlight.Satisfied(key)
	pods, err := c.claim(ctx, job, selector)
	if err != nil {
		return 0, err
	}
	if finished(&job.Status) {
		return 0, c.strip(ctx, slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
			return !hasFinalizer(p) || p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
		}))
	}
	s := state{job: job, pods: pods, stripped: c.stripped.has, now: c.clock.Now()}
	if err := c.verify(ctx, s); err != nil {
		return 0, err
	}
	p := s.decide()
	var errs []error
	if settled {
		errs = append(errs, c.manage(ctx, key, job, p))
	}
	if err := c.writeStatus(ctx, job, p.status); err != nil {
		return 0, errors.Join(append(errs, err)...)
	}
	errs = append(errs, c.strip(ctx, p.strip))
	return p.again, errors.Join(errs...)
}

// claim returns the pods of job, adopting and releasing where that is due.
func (c *controller) claim(ctx context.Context, job *batchv1.Job, selector labels.Selector) ([]*corev1.Pod, error) {
	return runtime.Dependents(ctx, &runtime.Claim{
		Owner: job, Kind: kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.client.BatchV1().Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
		},
		Patch: runtime.PatchPods(c.client, job.Namespace),
	}, slices.Concat(c.pods.OwnedBy(job.UID), c.pods.Orphans(job.Namespace)))
}

// verify reads the pods that are about to be counted from the API server, as
// long as the cache may be older than an earlier leader's last writes. Those that
// turn out to be counted are noted as stripped.
func (c *controller) verify(ctx context.Context, s state) error {
	if s.now.Sub(c.started) > settling {
		return nil
	}
	known := map[types.UID]bool{}
	if u := s.job.Status.UncountedTerminatedPods; u != nil {
		for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
			known[uid] = true
		}
	}
	for _, pod := range s.pods {
		if !s.tracked(pod) || known[pod.UID] || pod.Status.Phase != corev1.PodSucceeded && !failed(s.job, pod) {
			continue
		}
		fresh, err := c.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		if err != nil || fresh.UID != pod.UID || !hasFinalizer(fresh) {
			c.stripped.add(pod.UID)
		}
	}
	return nil
}

// manage creates and deletes pods.
func (c *controller) manage(ctx context.Context, key string, job *batchv1.Job, p plan) error {
	create := make([]*corev1.Pod, len(p.create))
	for i, n := range p.create {
		create[i] = newPod(job, n)
	}
	_, err := c.writer.Create(ctx, key, job, create)
	errs := []error{err, c.writer.Delete(ctx, key, job, p.delete)}
	// Only what has lost the finalizer: another pod has just ended, and counts.
	err = c.strip(ctx, p.remove)
	errs = append(errs, err, c.writer.Delete(ctx, key, job, slices.DeleteFunc(slices.Clone(p.remove), func(pod *corev1.Pod) bool {
		return hasFinalizer(pod) && !c.stripped.has(pod.UID)
	})))
	errs = append(errs, c.each(p.track, func(pod *corev1.Pod) error {
		return c.patchFinalizers(ctx, pod, append(slices.Clone(pod.Finalizers), batchv1.JobTrackingFinalizer))
	}))
	return errors.Join(errs...)
}

func (c *controller) writeStatus(ctx context.Context, job *batchv1.Job, next batchv1.JobStatus) error {
	if equality.Semantic.DeepEqual(job.Status, next) {
		return nil
	}
	updated := job.DeepCopy()
	updated.Status = next
	if _, err := c.client.BatchV1().Jobs(job.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status of job %s/%s: %w", job.Namespace, job.Name, err)
	}
	for _, now := range next.Conditions {
		before := find(&job.Status, now.Type)
		if before != nil && before.Status == now.Status {
			continue
		}
		switch {
		case now.Type == batchv1.JobFailed:
			c.events.Event(job, corev1.EventTypeWarning, now.Reason, now.Message)
		case now.Type == batchv1.JobComplete:
			c.events.Event(job, corev1.EventTypeNormal, "Completed", "Job completed")
		case now.Type == batchv1.JobSuspended && now.Status == corev1.ConditionTrue:
			c.events.Event(job, corev1.EventTypeNormal, "Suspended", "Job suspended")
		case now.Type == batchv1.JobSuspended:
			c.events.Event(job, corev1.EventTypeNormal, "Resumed", "Job resumed")
		}
	}
	return nil
}

// release takes the finalizer of a pod whose Job is gone.
func (c *controller) release(ctx context.Context, key string) error {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return err
	}
	pod, err := c.lister.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !hasFinalizer(pod) || !c.orphaned(pod) {
		return err
	}
	if ref := metav1.GetControllerOf(pod); ref != nil {
		// The cache may not show a new Job yet.
		job, err := c.client.BatchV1().Jobs(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && job.UID == ref.UID {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read job %s/%s: %w", namespace, ref.Name, err)
		}
	}
	return c.strip(ctx, []*corev1.Pod{pod})
}

// strip takes the finalizer of pods. What has changed meanwhile is left for its
// next event.
func (c *controller) strip(ctx context.Context, pods []*corev1.Pod) error {
	return c.each(pods, func(pod *corev1.Pod) error {
		if !hasFinalizer(pod) || c.stripped.has(pod.UID) {
			return nil
		}
		rest := slices.DeleteFunc(slices.Clone(pod.Finalizers), func(f string) bool { return f == batchv1.JobTrackingFinalizer })
		// Noted before, for the cache may show it before the answer comes.
		c.stripped.add(pod.UID)
		if err := c.patchFinalizers(ctx, pod, rest); err != nil && !apierrors.IsNotFound(err) {
			c.stripped.forget(pod.UID)
			return err
		}
		return nil
	})
}

func (c *controller) each(pods []*corev1.Pod, f func(*corev1.Pod) error) error {
	errs := make([]error, len(pods))
	runtime.Parallel(len(pods), 32, func(i int) {
		if err := f(pods[i]); err != nil {
			errs[i] = fmt.Errorf("finalizer of pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err)
		}
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *controller) patchFinalizers(ctx context.Context, pod *corev1.Pod, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "finalizers": finalizers,
	}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
