package cronjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

var (
	kind       = batchv1.SchemeGroupVersion.WithKind("CronJob")
	kindOfJobs = batchv1.SchemeGroupVersion.WithKind("Job")
)

type controller struct {
	client kubernetes.Interface
	crons  batchlisters.CronJobLister
	jobs   batchlisters.JobLister
	events record.EventRecorder
	clock  clock.PassiveClock
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	crons, jobs := d.Informers.Batch().V1().CronJobs(), d.Informers.Batch().V1().Jobs()
	c := &controller{client: d.Client, crons: crons.Lister(), jobs: jobs.Lister(), events: d.Recorder, clock: d.Clock}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Own(q, crons.Informer()),
			runtime.Each(jobs.Informer(), func(job *batchv1.Job) {
				if key, _, ok := runtime.ControllerKey(job, kind.GroupKind()); ok {
					q.Add(key)
				}
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	cj, err := c.crons.CronJobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	s := state{cj: cj, now: c.clock.Now()}
	if err := c.find(ctx, &s); err != nil {
		return 0, err
	}
	p := s.decide()
	for _, e := range p.events {
		c.events.Event(cj, e.kind, e.reason, e.message)
	}
	var errs []error
	for _, job := range p.prune {
		errs = append(errs, c.delete(ctx, cj, job))
	}
	errs = append(errs, c.start(ctx, cj, &p))
	if !equality.Semantic.DeepEqual(cj.Status, p.status) {
		updated := cj.DeepCopy()
		updated.Status = p.status
		if _, err := c.client.BatchV1().CronJobs(namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("update status of cron job %s: %w", key, err))
		}
	}
	return p.again, errors.Join(errs...)
}

// find looks for the CronJob's Jobs. Those of its status that the cache does not
// show are asked of the API server.
func (c *controller) find(ctx context.Context, s *state) error {
	all, err := c.jobs.Jobs(s.cj.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, job := range all {
		if metav1.IsControlledBy(job, s.cj) {
			s.jobs = append(s.jobs, job)
			seen[string(job.UID)] = true
		}
	}
	for _, r := range s.cj.Status.Active {
		if seen[string(r.UID)] {
			continue
		}
		job, err := c.client.BatchV1().Jobs(s.cj.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case err == nil && job.UID == r.UID:
			s.unseen = append(s.unseen, r)
		case err == nil || apierrors.IsNotFound(err):
			c.events.Eventf(s.cj, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %s", r.Name)
		default:
			return fmt.Errorf("read job %s/%s: %w", s.cj.Namespace, r.Name, err)
		}
	}
	return nil
}

// start starts the Job that is due and notes it in the plan's status.
func (c *controller) start(ctx context.Context, cj *batchv1.CronJob, p *plan) error {
	if p.start.IsZero() {
		return nil
	}
	for _, job := range p.replace {
		if err := c.delete(ctx, cj, job); err != nil {
			return err
		}
		p.status.Active = without(p.status.Active, job)
	}
	want := newJob(cj, p.start, p.zone)
	job, err := c.client.BatchV1().Jobs(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.events.Eventf(cj, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %s", job.Name)
		p.status.Active = append(p.status.Active, reference(job))
	case runtime.NamespaceEnding(err):
		return nil
	case apierrors.IsAlreadyExists(err):
		// Ours, started before and the note of it lost; another's is in the way.
		job, err = c.client.BatchV1().Jobs(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read job %s/%s: %w", want.Namespace, want.Name, err)
		}
		if !metav1.IsControlledBy(job, cj) {
			err := fmt.Errorf("create job %s/%s: the name is taken by a Job of somebody else: delete it", want.Namespace, want.Name)
			c.events.Event(cj, corev1.EventTypeWarning, "FailedCreate", err.Error())
			return err
		}
		if ended(job) == nil {
			p.status.Active = append(without(p.status.Active, job), reference(job))
		}
	default:
		c.events.Eventf(cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("create job %s/%s: %w", want.Namespace, want.Name, err)
	}
	p.status.LastScheduleTime = &metav1.Time{Time: p.start}
	return nil
}

func without(refs []corev1.ObjectReference, job *batchv1.Job) []corev1.ObjectReference {
	var out []corev1.ObjectReference
	for _, r := range refs {
		if r.UID != job.UID {
			out = append(out, r)
		}
	}
	return out
}

func (c *controller) delete(ctx context.Context, cj *batchv1.CronJob, job *batchv1.Job) error {
	background := metav1.DeletePropagationBackground
	err := c.client.BatchV1().Jobs(job.Namespace).Delete(ctx, job.Name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(job.UID)),
	})
	if err == nil {
		c.events.Eventf(cj, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %s", job.Name)
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.events.Eventf(cj, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("delete job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}
