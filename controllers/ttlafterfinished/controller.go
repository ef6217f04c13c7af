package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

type controller struct {
	client kubernetes.Interface
	jobs   batchlisters.JobLister
	clock  clock.PassiveClock
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	jobs := d.Informers.Batch().V1().Jobs()
	c := &controller{client: d.Client, jobs: jobs.Lister(), clock: d.Clock}
	see := func(job *batchv1.Job) {
		if _, ok := expiry(job); ok {
			q.Add(job.Namespace + "/" + job.Name)
		}
	}
	return runtime.Controller{
		Sources: []runtime.Source{runtime.On(jobs.Informer(), runtime.Handlers[*batchv1.Job]{
			Add: see, Update: func(_, n *batchv1.Job) { see(n) },
		})},
		Reconcile: c.reconcile,
	}, nil
}

// expiry returns when the Job is to be deleted, or false when it is not.
func expiry(job *batchv1.Job) (time.Time, bool) {
	if job.Spec.TTLSecondsAfterFinished == nil || job.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	job, err := c.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if wait, ok := c.left(job); !ok || wait > 0 {
		return wait, nil
	}
	fresh, err := c.client.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read job %s: %w", key, err)
	}
	if wait, ok := c.left(fresh); !ok || wait > 0 {
		return wait, nil
	}
	foreground := metav1.DeletePropagationForeground
	err = c.client.BatchV1().Jobs(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &fresh.UID, ResourceVersion: &fresh.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("delete job %s: %w", key, err)
	}
	return 0, nil
}

// left returns how long the Job is kept, or false for as long as nothing changes.
func (c *controller) left(job *batchv1.Job) (time.Duration, bool) {
	at, ok := expiry(job)
	return max(0, at.Sub(c.clock.Now())), ok
}
