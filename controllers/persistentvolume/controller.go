package persistentvolume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// A claim's key is namespace/name, a volume's its name alone.
type controller struct {
	client  kubernetes.Interface
	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
	classes storagelisters.StorageClassLister
	pods    runtime.PodIndex
	queue   runtime.Queue
	said    *notices

	volumesFor runtime.Index[*corev1.PersistentVolume]
	unboundOf  runtime.Index[*corev1.PersistentVolumeClaim]
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core, classes := d.Informers.Core().V1(), d.Informers.Storage().V1().StorageClasses()
	volumes, claims := core.PersistentVolumes(), core.PersistentVolumeClaims()
	c := &controller{
		client: d.Client, volumes: volumes.Lister(), claims: claims.Lister(), classes: classes.Lister(),
		queue: q, said: newNotices(d.Recorder),
	}
	var err error
	if c.pods, err = runtime.NewPodIndex(core.Pods().Informer()); err != nil {
		return runtime.Controller{}, err
	}
	if c.volumesFor, err = runtime.NewIndex(volumes.Informer(), "claim", func(v *corev1.PersistentVolume) []string {
		if ref := v.Spec.ClaimRef; ref != nil {
			return []string{ref.Namespace + "/" + ref.Name}
		}
		return []string{ofClass(volume.GetPersistentVolumeClass(v))}
	}); err != nil {
		return runtime.Controller{}, err
	}
	if c.unboundOf, err = runtime.NewIndex(claims.Informer(), "unbound", func(claim *corev1.PersistentVolumeClaim) []string {
		if _, ok := claim.Annotations[volume.AnnBindCompleted]; ok {
			return nil
		}
		return []string{ofClass(volume.GetPersistentVolumeClaimClass(claim))}
	}); err != nil {
		return runtime.Controller{}, err
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(claims.Informer(), runtime.Handlers[*corev1.PersistentVolumeClaim]{
				Add:    c.seeClaim,
				Update: func(_, n *corev1.PersistentVolumeClaim) { c.seeClaim(n) },
				Delete: func(claim *corev1.PersistentVolumeClaim) {
					c.said.forget(claim.UID)
					c.seeClaim(claim)
				},
			}),
			runtime.On(volumes.Informer(), runtime.Handlers[*corev1.PersistentVolume]{
				Add: c.seeVolume,
				Update: func(o, n *corev1.PersistentVolume) {
					c.seeVolume(n)
					if ref := o.Spec.ClaimRef; ref != nil && n.Spec.ClaimRef == nil {
						q.Add(ref.Namespace + "/" + ref.Name)
					}
				},
				Delete: func(v *corev1.PersistentVolume) {
					c.said.forget(v.UID)
					if ref := v.Spec.ClaimRef; ref != nil {
						q.Add(ref.Namespace + "/" + ref.Name)
					}
				},
			}),
			runtime.Each(classes.Informer(), func(class *storagev1.StorageClass) {
				c.wake(class.Name)
				c.wake("")
			}),
			runtime.Each(core.Pods().Informer(), func(pod *corev1.Pod) {
				if pod.Spec.NodeName == "" || podstate.Terminal(pod) {
					for _, name := range runtime.ClaimNames(pod) {
						c.touch(pod.Namespace, name)
					}
				}
			}),
		},
		Reconcile: c.reconcile,
		Explain:   c.explain,
	}, nil
}

// ofClass is an index value that no claim's key can be.
func ofClass(class string) string { return "class:" + class }

func (c *controller) seeClaim(claim *corev1.PersistentVolumeClaim) {
	c.queue.Add(claim.Namespace + "/" + claim.Name)
	if claim.Spec.VolumeName != "" {
		c.queue.Add(claim.Spec.VolumeName)
	}
	for _, v := range c.volumesFor.Get(claim.Namespace + "/" + claim.Name) {
		if v.Name != claim.Spec.VolumeName {
			c.queue.Add(v.Name)
		}
	}
}

func (c *controller) seeVolume(v *corev1.PersistentVolume) {
	c.queue.Add(v.Name)
	if ref := v.Spec.ClaimRef; ref != nil {
		c.queue.Add(ref.Namespace + "/" + ref.Name)
	} else {
		c.wake(volume.GetPersistentVolumeClass(v))
	}
}

// wake queues the claims of a class that are not bound.
func (c *controller) wake(class string) {
	for _, claim := range c.unboundOf.Get(ofClass(class)) {
		c.queue.Add(claim.Namespace + "/" + claim.Name)
	}
}

// touch queues a claim that is not bound.
func (c *controller) touch(namespace, name string) {
	if claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name); err == nil {
		if _, ok := claim.Annotations[volume.AnnBindCompleted]; !ok {
			c.queue.Add(namespace + "/" + name)
		}
	}
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	if namespace == "" {
		return 0, c.reconcileVolume(ctx, name)
	}
	return 0, c.reconcileClaim(ctx, namespace, name)
}

// surroundings reads what a decision about the claim rests on.
func (c *controller) surroundings(claim *corev1.PersistentVolumeClaim) (s surroundings, err error) {
	if name := claim.Spec.VolumeName; name != "" {
		if s.named, err = c.volumes.Get(name); apierrors.IsNotFound(err) {
			s.named, err = nil, nil
		}
		return s, err
	}
	if name := volume.GetPersistentVolumeClaimClass(claim); name != "" {
		if s.class, err = c.classes.Get(name); err != nil && !apierrors.IsNotFound(err) {
			return s, err
		} else if err != nil {
			s.class = nil
		}
	}
	if s.match, err = c.match(claim, delayed(s.class)); err != nil {
		return s, err
	}
	classes, err := c.classes.List(everything)
	if err != nil {
		return s, err
	}
	s.defaultClass = defaultClass(classes)
	for _, pod := range c.pods.Naming(claim.Namespace, claim.Name) {
		if pod.Spec.NodeName == "" && !podstate.Terminal(pod) {
			s.unscheduled = append(s.unscheduled, pod.Name)
		}
	}
	slices.Sort(s.unscheduled)
	return s, nil
}

// match returns the best volume for a claim: the one promised to it, else the
// one with the fewest access modes, and of those the smallest.
func (c *controller) match(claim *corev1.PersistentVolumeClaim, delayed bool) (*corev1.PersistentVolume, error) {
	groups := map[int][]*corev1.PersistentVolume{0: c.volumesFor.Get(claim.Namespace + "/" + claim.Name)}
	for _, v := range c.volumesFor.Get(ofClass(volume.GetPersistentVolumeClaimClass(claim))) {
		if volume.CheckAccessModes(claim, v) {
			groups[len(v.Spec.AccessModes)] = append(groups[len(v.Spec.AccessModes)], v)
		}
	}
	for _, modes := range slices.Sorted(maps.Keys(groups)) {
		slices.SortFunc(groups[modes], func(a, b *corev1.PersistentVolume) int {
			x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
			return x.Cmp(y)
		})
		v, err := volume.FindMatchingVolume(claim, groups[modes], nil, nil, delayed, true)
		if v != nil || err != nil {
			return v, err
		}
	}
	return nil, nil
}

func (c *controller) reconcileClaim(ctx context.Context, namespace, name string) error {
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if claim, err = c.migrateClaim(ctx, claim); err != nil {
		return err
	}
	s, err := c.surroundings(claim)
	if err != nil {
		return fmt.Errorf("find a volume for claim %s/%s: %w", namespace, name, err)
	}
	step := decideClaim(claim, s)
	switch {
	case step.bind != nil:
		return c.bind(ctx, step.bind, claim)
	case step.assign != "":
		next := claim.DeepCopy()
		next.Spec.StorageClassName = &step.assign
		_, err := c.updateClaim(ctx, next)
		return err
	case step.provision != nil:
		if claim, err = c.setProvisioner(ctx, claim, provisionerName(step.provision)); err != nil {
			return err
		}
	}
	changed := claim.Status.Phase != step.phase
	if _, err := c.setClaimStatus(ctx, claim, step.phase, nil); err != nil {
		return err
	}
	if step.notice != nil && (changed || step.phase != corev1.ClaimLost) {
		c.said.say(claim, *step.notice)
	}
	return nil
}

// bind brings volume and claim together: the volume's reference, its phase, the
// claim's volume, its status; each only where it is not so yet.
func (c *controller) bind(ctx context.Context, v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	next, dirty, err := volume.GetBindVolumeToClaim(v, claim)
	if err != nil {
		return fmt.Errorf("bind volume %s: %w", v.Name, err)
	}
	if dirty {
		if v, err = c.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind volume %s to claim %s/%s: %w", next.Name, claim.Namespace, claim.Name, err)
		}
	}
	if v, err = c.setVolumePhase(ctx, v, corev1.VolumeBound, ""); err != nil {
		return err
	}
	bound := claim.DeepCopy()
	if bound.Spec.VolumeName != v.Name {
		bound.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, volume.AnnBoundByController, "yes")
	}
	if _, ok := bound.Annotations[volume.AnnBindCompleted]; !ok {
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	if !equality.Semantic.DeepEqual(bound, claim) {
		if claim, err = c.updateClaim(ctx, bound); err != nil {
			return err
		}
	}
	_, err = c.setClaimStatus(ctx, claim, corev1.ClaimBound, v)
	return err
}

// preResize is the capacity of a volume before it grew, while its file system
// has not grown yet.
const preResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

// setClaimStatus writes the claim's phase and what it has of the volume.
func (c *controller) setClaimStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase, v *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	next := claim.DeepCopy()
	st := &next.Status
	if v == nil {
		st.AccessModes, st.Capacity, st.CurrentVolumeAttributesClassName = nil, nil, nil
	} else {
		st.AccessModes = v.Spec.AccessModes
		if st.Phase != phase {
			size, ok := v.Spec.Capacity[corev1.ResourceStorage]
			if !ok {
				return nil, fmt.Errorf("volume %s has no storage capacity: set spec.capacity.storage", v.Name)
			}
			if was, err := resource.ParseQuantity(v.Annotations[preResize]); err == nil {
				size = was
			}
			if have, ok := st.Capacity[corev1.ResourceStorage]; !ok || have.Cmp(size) != 0 {
				st.Capacity = maps.Clone(v.Spec.Capacity)
				st.Capacity[corev1.ResourceStorage] = size
			}
		}
		if st.Phase == corev1.ClaimPending && phase == corev1.ClaimBound {
			st.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
		}
	}
	st.Phase = phase
	if equality.Semantic.DeepEqual(next.Status, claim.Status) {
		return claim, nil
	}
	updated, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return updated, nil
}

func (c *controller) updateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	updated, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return updated, nil
}

func (c *controller) setVolumePhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) (*corev1.PersistentVolume, error) {
	if v.Status.Phase == phase {
		return v, nil
	}
	next := v.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, message
	updated, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update status of volume %s: %w", v.Name, err)
	}
	return updated, nil
}
