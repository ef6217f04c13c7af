package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/scales"
)

// podKey marks queue keys of pods, against those of budgets.
const podKey = "pod:"

type controller struct {
	client      kubernetes.Interface
	scales      *scales.Client
	budgets     policylisters.PodDisruptionBudgetLister
	pods        corelisters.PodLister
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	stateful    appslisters.StatefulSetLister
	replicators corelisters.ReplicationControllerLister
	events      record.EventRecorder
	clock       clock.PassiveClock
	queue       runtime.Queue
}

// New builds the controller. s reads the scale of kinds that are not built in;
// when it is nil, such pods have no known scale.
func New(d runtime.Deps, q runtime.Queue, s *scales.Client) (runtime.Controller, error) {
	apps, core, budgets := d.Informers.Apps().V1(), d.Informers.Core().V1(), d.Informers.Policy().V1().PodDisruptionBudgets()
	c := &controller{
		client: d.Client, scales: s, budgets: budgets.Lister(), pods: core.Pods().Lister(),
		deployments: apps.Deployments().Lister(), sets: apps.ReplicaSets().Lister(),
		stateful: apps.StatefulSets().Lister(), replicators: core.ReplicationControllers().Lister(),
		events: d.Recorder, clock: d.Clock, queue: q,
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.Own(q, budgets.Informer()),
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Add: c.podSeen, Delete: c.podChanged,
				Update: func(o, n *corev1.Pod) {
					if !equality.Semantic.DeepEqual(o.Labels, n.Labels) {
						c.podChanged(o)
					}
					c.podSeen(n)
				},
			}),
		},
		Synced: []cache.InformerSynced{
			apps.Deployments().Informer().HasSynced, apps.ReplicaSets().Informer().HasSynced,
			apps.StatefulSets().Informer().HasSynced, core.ReplicationControllers().Informer().HasSynced,
		},
		Reconcile: c.reconcile,
	}, nil
}

// podChanged queues the budgets that select a pod.
func (c *controller) podChanged(pod *corev1.Pod) {
	budgets, err := c.budgets.GetPodPodDisruptionBudgets(pod)
	if err != nil {
		return // none selects it
	}
	for _, b := range budgets {
		c.queue.Add(b.Namespace + "/" + b.Name)
	}
}

func (c *controller) podSeen(pod *corev1.Pod) {
	c.podChanged(pod)
	if _, ok := stale(pod, c.clock.Now()); ok {
		c.queue.Add(podKey + pod.Namespace + "/" + pod.Name)
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if pod, ok := strings.CutPrefix(key, podKey); ok {
		return c.takeBack(ctx, pod)
	}
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	pdb, err := c.budgets.PodDisruptionBudgets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || pdb.DeletionTimestamp != nil {
		return 0, err
	}
	s := state{pdb: pdb, now: c.clock.Now()}
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("selector of pod disruption budget %s: %w", key, err)
	}
	if s.pods, err = c.pods.Pods(namespace).List(selector); err != nil {
		return 0, err
	}
	if len(s.pods) == 0 {
		c.events.Event(pdb, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	if scaled(pdb) {
		s.scale, s.scaleErr = c.scale(ctx, pdb, s.pods)
		if s.scaleErr != nil {
			c.events.Eventf(pdb, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", s.scaleErr)
		}
	}
	next, again, expired := s.status()
	for _, pod := range expired {
		c.events.Eventf(pdb, corev1.EventTypeWarning, "NotDeleted", "Pod %s/%s was expected to be deleted but it wasn't: its eviction does not count any more", namespace, pod)
	}
	if !equality.Semantic.DeepEqual(pdb.Status, next) {
		updated := pdb.DeepCopy()
		updated.Status = next
		if _, err := c.client.PolicyV1().PodDisruptionBudgets(namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("update status of pod disruption budget %s: %w", key, err)
		}
	}
	return again, s.scaleErr
}

// scale adds up how many pods the controllers of the pods want, each controller
// once. Pods without a controller count one each.
func (c *controller) scale(ctx context.Context, pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (int, error) {
	wanted := map[types.UID]int32{}
	known := map[types.UID]bool{} // direct controllers
	total := 0
	for _, pod := range pods {
		ref := metav1.GetControllerOf(pod)
		if ref == nil {
			total++
			continue
		}
		if known[ref.UID] {
			continue
		}
		uid, n, err := c.controllerScale(ctx, pod.Namespace, ref)
		if err != nil {
			return 0, fmt.Errorf("pod %s of %s %s: %w", pod.Name, ref.Kind, ref.Name, err)
		}
		known[ref.UID] = true
		wanted[uid] = n
	}
	for _, n := range wanted {
		total += int(n)
	}
	return total, nil
}

// errReplaced means that the controller of a pod is another of the name.
var errReplaced = errors.New("its controller is gone and another has the name")

// controllerScale returns how many pods a controller wants, and the UID of what
// decides that.
func (c *controller) controllerScale(ctx context.Context, namespace string, ref *metav1.OwnerReference) (types.UID, int32, error) {
	count := func(o metav1.Object, replicas *int32, err error) (types.UID, int32, error) {
		switch {
		case err != nil:
			return "", 0, err
		case o.GetUID() != ref.UID:
			return "", 0, errReplaced
		case replicas == nil:
			return ref.UID, 1, nil
		}
		return ref.UID, *replicas, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	switch {
	case gvk.Group == appsv1.GroupName && gvk.Kind == "ReplicaSet":
		rs, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
		if err != nil {
			return "", 0, err
		}
		if o := metav1.GetControllerOf(rs); o != nil && o.Kind == "Deployment" && strings.HasPrefix(o.APIVersion, appsv1.GroupName+"/") && rs.UID == ref.UID {
			if d, err := c.deployments.Deployments(namespace).Get(o.Name); err == nil && d.UID == o.UID {
				n := int32(1)
				if d.Spec.Replicas != nil {
					n = *d.Spec.Replicas
				}
				return d.UID, n, nil
			}
		}
		return count(rs, rs.Spec.Replicas, nil)
	case gvk.Group == appsv1.GroupName && gvk.Kind == "StatefulSet":
		set, err := c.stateful.StatefulSets(namespace).Get(ref.Name)
		if err != nil {
			return "", 0, err
		}
		return count(set, set.Spec.Replicas, nil)
	case gvk.Group == "" && gvk.Kind == "ReplicationController":
		rc, err := c.replicators.ReplicationControllers(namespace).Get(ref.Name)
		if err != nil {
			return "", 0, err
		}
		return count(rc, rc.Spec.Replicas, nil)
	}
	if c.scales == nil {
		return "", 0, errors.New("its controller has no scale: use an integer minAvailable")
	}
	s, _, err := c.scales.Get(ctx, namespace, gvk, ref.Name)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return "", 0, fmt.Errorf("its controller has no scale: use an integer minAvailable: %w", err)
		}
		return "", 0, err
	}
	return count(s, &s.Spec.Replicas, nil)
}

// takeBack removes the mark of a pod that was about to be disrupted and was not.
func (c *controller) takeBack(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	wait, ok := stale(pod, c.clock.Now())
	if !ok || wait > 0 {
		return wait, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"conditions": []map[string]any{{
			"type": corev1.DisruptionTarget, "status": corev1.ConditionFalse, "reason": "", "message": "",
			"lastTransitionTime": metav1.NewTime(c.clock.Now()),
		}}},
	})
	if err != nil {
		return 0, err
	}
	if _, err := c.client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("take back the condition DisruptionTarget of pod %s: %w", key, err)
	}
	return 0, nil
}
