package scheduling

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/plugin"
)

// objects are what the decisions need beside nodes and pods, from shared caches.
type objects struct {
	claims       corelisters.PersistentVolumeClaimLister
	volumes      corelisters.PersistentVolumeLister
	classes      storagelisters.StorageClassLister
	csiNodes     storagelisters.CSINodeLister
	csiDrivers   storagelisters.CSIDriverLister
	capacities   storagelisters.CSIStorageCapacityLister
	attachments  storagelisters.VolumeAttachmentLister
	services     corelisters.ServiceLister
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
	budgets      policylisters.PodDisruptionBudgetLister
	assumed      *plugin.Assumed
}

var _ plugin.Objects = (*objects)(nil)

func newObjects(f informers.SharedInformerFactory) *objects {
	core, st, apps := f.Core().V1(), f.Storage().V1(), f.Apps().V1()
	return &objects{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), classes: st.StorageClasses().Lister(),
		csiNodes: st.CSINodes().Lister(), csiDrivers: st.CSIDrivers().Lister(), capacities: st.CSIStorageCapacities().Lister(), attachments: st.VolumeAttachments().Lister(),
		services: core.Services().Lister(), controllers: core.ReplicationControllers().Lister(), replicaSets: apps.ReplicaSets().Lister(), statefulSets: apps.StatefulSets().Lister(),
		budgets: f.Policy().V1().PodDisruptionBudgets().Lister(), assumed: plugin.NewAssumed(),
	}
}

// found is the object, or nil where there is none: a cache has no other error.
func found[T any](o *T, err error) *T {
	if err != nil {
		return nil
	}
	return o
}

func listed[T any](o []T, _ error) []T { return o } // a cache's lists do not fail

func (o *objects) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return found(o.claims.PersistentVolumeClaims(namespace).Get(name))
}
func (o *objects) Volume(name string) *corev1.PersistentVolume { return found(o.volumes.Get(name)) }
func (o *objects) Volumes() []*corev1.PersistentVolume {
	return listed(o.volumes.List(labels.Everything()))
}
func (o *objects) StorageClass(name string) *storagev1.StorageClass {
	return found(o.classes.Get(name))
}
func (o *objects) CSINode(name string) *storagev1.CSINode     { return found(o.csiNodes.Get(name)) }
func (o *objects) CSIDriver(name string) *storagev1.CSIDriver { return found(o.csiDrivers.Get(name)) }
func (o *objects) CSICapacities(class string) []*storagev1.CSIStorageCapacity {
	return slices.DeleteFunc(slices.Clone(listed(o.capacities.List(labels.Everything()))), func(c *storagev1.CSIStorageCapacity) bool { return c.StorageClassName != class })
}
func (o *objects) Attachments(node string) []*storagev1.VolumeAttachment {
	return slices.DeleteFunc(slices.Clone(listed(o.attachments.List(labels.Everything()))), func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName != node })
}

// Held is what reservations hold.
func (o *objects) Held() *plugin.Assumed { return o.assumed }

// ServiceSelectors are those of the Services that select the pod.
func (o *objects) ServiceSelectors(p *corev1.Pod) []labels.Selector {
	var out []labels.Selector
	for _, s := range listed(o.services.Services(p.Namespace).List(labels.Everything())) {
		if len(s.Spec.Selector) == 0 {
			continue
		}
		if sel := labels.SelectorFromValidatedSet(s.Spec.Selector); sel.Matches(labels.Set(p.Labels)) {
			out = append(out, sel)
		}
	}
	slices.SortFunc(out, func(a, b labels.Selector) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// OwnerSelector joins the selectors of the pod's Services and of its controller.
func (o *objects) OwnerSelector(p *corev1.Pod) labels.Selector {
	all := labels.NewSelector()
	join := func(s labels.Selector, err error) {
		if err != nil {
			return // validated when it was made
		}
		if rs, ok := s.Requirements(); ok {
			all = all.Add(rs...)
		}
	}
	for _, s := range o.ServiceSelectors(p) {
		join(s, nil)
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		switch ref.Kind {
		case "ReplicationController":
			if c := found(o.controllers.ReplicationControllers(p.Namespace).Get(ref.Name)); c != nil {
				join(labels.SelectorFromValidatedSet(c.Spec.Selector), nil)
			}
		case "ReplicaSet":
			if c := found(o.replicaSets.ReplicaSets(p.Namespace).Get(ref.Name)); c != nil {
				join(metav1.LabelSelectorAsSelector(c.Spec.Selector))
			}
		case "StatefulSet":
			if c := found(o.statefulSets.StatefulSets(p.Namespace).Get(ref.Name)); c != nil {
				join(metav1.LabelSelectorAsSelector(c.Spec.Selector))
			}
		}
	}
	if all.Empty() {
		return nil
	}
	return all
}

// Budgets are all PodDisruptionBudgets.
func (o *objects) Budgets() []engine.Budget {
	var out []engine.Budget
	for _, b := range listed(o.budgets.List(labels.Everything())) {
		out = append(out, budget(b))
	}
	return out
}

func budget(b *policyv1.PodDisruptionBudget) engine.Budget {
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		sel = labels.Nothing() // validated when it was made
	}
	x := engine.Budget{Namespace: b.Namespace, Selector: sel, Allowed: int(b.Status.DisruptionsAllowed), Disrupted: map[string]bool{}}
	for name := range b.Status.DisruptedPods {
		x.Disrupted[name] = true
	}
	return x
}
