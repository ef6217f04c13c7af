package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const (
	// podKey begins the key of a pod; that of a claim is its namespace and name.
	podKey = "pod:"
	// manager owns the claims' names in the pods' status.
	manager = "ResourceClaimController"
)

type controller struct {
	client    kubernetes.Interface
	pods      corelisters.PodLister
	claims    resourcelisters.ResourceClaimLister
	templates resourcelisters.ResourceClaimTemplateLister
	events    record.EventRecorder
	queue     runtime.Queue

	podsOf      runtime.Index[*corev1.Pod]               // by claim
	podsFrom    runtime.Index[*corev1.Pod]               // by template
	claimsOwned runtime.Index[*resourcev1.ResourceClaim] // by the UID of their pod

	mu sync.Mutex
	// made are claims that the cache may not show yet: by pod, then by entry.
	made map[types.UID]map[string]string
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	pods, resource := d.Informers.Core().V1().Pods(), d.Informers.Resource().V1()
	claims, templates := resource.ResourceClaims(), resource.ResourceClaimTemplates()
	c := &controller{
		client: d.Client, pods: pods.Lister(), claims: claims.Lister(), templates: templates.Lister(),
		events: d.Recorder, queue: q, made: map[types.UID]map[string]string{},
	}
	prefixed := func(namespace string, names []string) []string {
		for i := range names {
			names[i] = namespace + "/" + names[i]
		}
		return names
	}
	var err error
	if c.podsOf, err = runtime.NewIndex(pods.Informer(), "resource-claim", func(p *corev1.Pod) []string { return prefixed(p.Namespace, claimNames(p)) }); err != nil {
		return runtime.Controller{}, err
	}
	if c.podsFrom, err = runtime.NewIndex(pods.Informer(), "resource-claim-template", func(p *corev1.Pod) (names []string) {
		for _, pc := range p.Spec.ResourceClaims {
			if pc.ResourceClaimTemplateName != nil {
				names = append(names, *pc.ResourceClaimTemplateName)
			}
		}
		return prefixed(p.Namespace, names)
	}); err != nil {
		return runtime.Controller{}, err
	}
	if c.claimsOwned, err = runtime.NewIndex(claims.Informer(), "pod", func(claim *resourcev1.ResourceClaim) []string {
		if ref := owner(claim); ref != nil {
			return []string{string(ref.UID)}
		}
		return nil
	}); err != nil {
		return runtime.Controller{}, err
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(pods.Informer(), runtime.Handlers[*corev1.Pod]{
				Add:    c.seePod,
				Update: func(_, n *corev1.Pod) { c.seePod(n) },
				Delete: func(pod *corev1.Pod) {
					c.forget(pod.UID)
					c.seeClaims(pod)
				},
			}),
			runtime.Each(claims.Informer(), func(claim *resourcev1.ResourceClaim) {
				q.Add(claim.Namespace + "/" + claim.Name)
				for _, pod := range c.podsOf.Get(claim.Namespace + "/" + claim.Name) {
					c.seePod(pod)
				}
			}),
			runtime.On(templates.Informer(), runtime.Handlers[*resourcev1.ResourceClaimTemplate]{Add: func(t *resourcev1.ResourceClaimTemplate) {
				for _, pod := range c.podsFrom.Get(t.Namespace + "/" + t.Name) {
					c.seePod(pod)
				}
			}}),
		},
		Synced:    []cache.InformerSynced{templates.Informer().HasSynced},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) seePod(pod *corev1.Pod) {
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	if done(pod) {
		c.seeClaims(pod)
	} else {
		c.queue.Add(podKey + pod.Namespace + "/" + pod.Name)
	}
}

// seeClaims queues the claims that the pod had.
func (c *controller) seeClaims(pod *corev1.Pod) {
	for _, name := range claimNames(pod) {
		c.queue.Add(pod.Namespace + "/" + name)
	}
	for _, claim := range c.claimsOwned.Get(string(pod.UID)) {
		c.queue.Add(claim.Namespace + "/" + claim.Name)
	}
}

// owner returns the pod that a claim was made for.
func owner(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	if ref := metav1.GetControllerOf(claim); ref != nil && ref.APIVersion == "v1" && ref.Kind == "Pod" {
		return ref
	}
	return nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	pod, isPod := strings.CutPrefix(key, podKey)
	namespace, name, err := runtime.SplitKey(pod)
	if err != nil {
		return 0, err
	}
	if isPod {
		return 0, c.reconcilePod(ctx, namespace, name)
	}
	return 0, c.reconcileClaim(ctx, namespace, name)
}

func (c *controller) reconcilePod(ctx context.Context, namespace, name string) error {
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || pod.DeletionTimestamp != nil || done(pod) {
		return err
	}
	names := map[string]string{} // of claims from templates, by entry
	changed := false
	var errs []error
	for _, pc := range pod.Spec.ResourceClaims {
		if pc.ResourceClaimTemplateName == nil {
			continue
		}
		known, needed := claimName(pod, pc)
		if !needed {
			continue
		}
		made, err := c.ensure(ctx, pod, pc, known)
		if runtime.NamespaceEnding(err) {
			return nil
		}
		if err != nil {
			c.events.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", pc.Name, err)
			errs = append(errs, fmt.Errorf("claim %s of pod %s/%s: %w", pc.Name, namespace, name, err))
			continue
		}
		names[pc.Name] = made
		changed = changed || made != known
	}
	if changed {
		errs = append(errs, c.writeNames(ctx, pod, names))
	}
	if pod.Spec.NodeName != "" {
		errs = append(errs, c.reserve(ctx, pod))
	}
	return errors.Join(errs...)
}

// ensure returns the name of the claim of an entry, and makes it when it is
// missing. known is the name in the pod's status.
func (c *controller) ensure(ctx context.Context, pod *corev1.Pod, pc corev1.PodResourceClaim, known string) (string, error) {
	for _, claim := range c.claimsOwned.Get(string(pod.UID)) {
		if claim.Annotations[resourcev1.PodResourceClaimAnnotation] == pc.Name && claim.DeletionTimestamp == nil && (known == "" || claim.Name == known) {
			return claim.Name, nil
		}
	}
	c.mu.Lock()
	made := c.made[pod.UID][pc.Name]
	c.mu.Unlock()
	for _, name := range []string{made, known} {
		if name == "" {
			continue
		}
		claim, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && metav1.IsControlledBy(claim, pod) {
			return name, nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("read resource claim %s: %w", name, err)
		}
	}
	t, err := c.templates.ResourceClaimTemplates(pod.Namespace).Get(*pc.ResourceClaimTemplateName)
	if err != nil {
		return "", fmt.Errorf("resource claim template %q: %w", *pc.ResourceClaimTemplateName, err)
	}
	claim, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, newClaim(pod, pc.Name, t), metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create ResourceClaim: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[pod.UID] == nil {
		c.made[pod.UID] = map[string]string{}
	}
	c.made[pod.UID][pc.Name] = claim.Name
	return claim.Name, nil
}

func (c *controller) forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, pod)
}

// writeNames writes the names of the pod's claims into its status.
func (c *controller) writeNames(ctx context.Context, pod *corev1.Pod, names map[string]string) error {
	status := applycorev1.PodStatus()
	for _, pc := range pod.Spec.ResourceClaims {
		if name := names[pc.Name]; name != "" {
			status.WithResourceClaimStatuses(applycorev1.PodResourceClaimStatus().WithName(pc.Name).WithResourceClaimName(name))
		}
	}
	_, err := c.client.CoreV1().Pods(pod.Namespace).ApplyStatus(ctx, applycorev1.Pod(pod.Name, pod.Namespace).WithStatus(status),
		metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write claims of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// reserve reserves allocated claims for a pod that has a node: one bound by hand
// has no scheduler that would.
func (c *controller) reserve(ctx context.Context, pod *corev1.Pod) error {
	for _, pc := range pod.Spec.ResourceClaims {
		name, _ := claimName(pod, pc)
		if name == "" {
			continue
		}
		claim, err := c.claims.ResourceClaims(pod.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue // its creation brings the pod back
		}
		if err != nil {
			return err
		}
		if pc.ResourceClaimTemplateName != nil && !metav1.IsControlledBy(claim, pod) {
			return fmt.Errorf("resource claim %s/%s was not made for pod %s", pod.Namespace, name, pod.Name)
		}
		if claim.Status.Allocation == nil || reserved(claim, pod) || len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize {
			continue
		}
		next := claim.DeepCopy()
		next.Status.ReservedFor = append(next.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		if _, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("reserve resource claim %s/%s for pod %s: %w", pod.Namespace, name, pod.Name, err)
		}
	}
	return nil
}

func (c *controller) reconcileClaim(ctx context.Context, namespace, name string) error {
	claim, err := c.claims.ResourceClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	remain, err := c.remaining(ctx, claim)
	if err != nil {
		return err
	}
	api := c.client.ResourceV1().ResourceClaims(namespace)
	r := decide(claim, remain)
	if r.status != nil {
		next := claim.DeepCopy()
		next.Status = *r.status
		if claim, err = api.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("release resource claim %s/%s: %w", namespace, name, err)
		}
	}
	if r.finalizer {
		next := claim.DeepCopy()
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		if claim, err = api.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("take finalizer off resource claim %s/%s: %w", namespace, name, err)
		}
	}
	if len(remain) > 0 || claim.DeletionTimestamp != nil {
		return nil
	}
	// One made for a pod that has ended is of no use; when the pod is gone the
	// garbage collector deletes it.
	ref := owner(claim)
	if ref == nil {
		return nil
	}
	pod, err := c.pods.Pods(namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.UID == ref.UID && !done(pod) {
		return nil
	}
	if err != nil {
		return err
	}
	err = api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete unused resource claim %s/%s: %w", namespace, name, err)
	}
	return nil
}

// remaining returns the consumers that may use the claim still. Those that are
// not pods are somebody else's matter.
func (c *controller) remaining(ctx context.Context, claim *resourcev1.ResourceClaim) (out []resourcev1.ResourceClaimConsumerReference, err error) {
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup == "" && r.Resource == "pods" {
			pod, err := c.pods.Pods(claim.Namespace).Get(r.Name)
			if apierrors.IsNotFound(err) {
				// The cache may lag behind the claim.
				pod, err = c.client.CoreV1().Pods(claim.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("read pod %s/%s: %w", claim.Namespace, r.Name, err)
			}
			if err != nil || pod.UID != r.UID || done(pod) {
				continue
			}
		}
		out = append(out, r)
	}
	return out, nil
}
