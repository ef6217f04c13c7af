package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

const (
	// managed marks nodes whose kubelet leaves attaching to this controller.
	managed = "volumes.kubernetes.io/controller-managed-attach-detach"
	// keepTerminated marks nodes that keep the volumes of ended pods mounted.
	keepTerminated = "volumes.kubernetes.io/keep-terminated-pod-volumes"
)

var translator = csitranslation.New()

type controller struct {
	client  kubernetes.Interface
	nodes   corelisters.NodeLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	drivers storagelisters.CSIDriverLister
	pods    runtime.PodIndex
	onNode  runtime.Index[*storagev1.VolumeAttachment]
	ofPV    runtime.Index[*storagev1.VolumeAttachment]
	events  record.EventRecorder
	clock   clock.PassiveClock
	queue   runtime.Queue

	mu sync.Mutex
	// idle is since when an attachment was seen to be of no use, by its name.
	idle map[string]time.Time
	// told is what a pod was told about its volumes last, by its UID.
	told map[string]string
}

// New builds the controller. Its keys are nodes.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core, storage := d.Informers.Core().V1(), d.Informers.Storage().V1()
	attachments := storage.VolumeAttachments().Informer()
	c := &controller{
		client: d.Client, nodes: core.Nodes().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(), drivers: storage.CSIDrivers().Lister(),
		events: d.Recorder, clock: d.Clock, queue: q, idle: map[string]time.Time{}, told: map[string]string{},
	}
	var err error
	if c.pods, err = runtime.NewPodIndex(core.Pods().Informer()); err != nil {
		return runtime.Controller{}, err
	}
	if c.onNode, err = runtime.NewIndex(attachments, "node", func(va *storagev1.VolumeAttachment) []string { return []string{va.Spec.NodeName} }); err != nil {
		return runtime.Controller{}, err
	}
	if c.ofPV, err = runtime.NewIndex(attachments, "volume", func(va *storagev1.VolumeAttachment) []string {
		if name := va.Spec.Source.PersistentVolumeName; name != nil {
			return []string{*name}
		}
		return nil
	}); err != nil {
		return runtime.Controller{}, err
	}
	users := func(namespace, claim string) {
		for _, pod := range c.pods.Naming(namespace, claim) {
			c.seePod(pod)
		}
	}
	return runtime.Controller{
		Sources: []runtime.Source{
			runtime.On(core.Nodes().Informer(), runtime.Handlers[*corev1.Node]{
				Add:    func(n *corev1.Node) { q.Add(n.Name) },
				Update: func(o, n *corev1.Node) { c.seeNode(o, n) },
				Delete: func(n *corev1.Node) { q.Add(n.Name) },
			}),
			runtime.On(core.Pods().Informer(), runtime.Handlers[*corev1.Pod]{
				Add: c.seePod,
				Update: func(o, n *corev1.Pod) {
					if o.Spec.NodeName != n.Spec.NodeName || podstate.Terminal(o) != podstate.Terminal(n) {
						c.seePod(n)
					}
				},
				Delete: func(pod *corev1.Pod) {
					c.tell(pod, "", "", "")
					c.seePod(pod)
				},
			}),
			runtime.Each(attachments, c.seeAttachment),
			runtime.Each(core.PersistentVolumeClaims().Informer(), func(claim *corev1.PersistentVolumeClaim) { users(claim.Namespace, claim.Name) }),
			runtime.On(core.PersistentVolumes().Informer(), runtime.Handlers[*corev1.PersistentVolume]{Add: func(v *corev1.PersistentVolume) {
				if ref := v.Spec.ClaimRef; ref != nil {
					users(ref.Namespace, ref.Name)
				}
			}}),
			runtime.On(storage.CSIDrivers().Informer(), runtime.Handlers[*storagev1.CSIDriver]{Add: func(*storagev1.CSIDriver) {
				if all, err := c.nodes.List(labels.Everything()); err == nil {
					for _, n := range all {
						q.Add(n.Name)
					}
				}
			}}),
		},
		Synced:    []cache.InformerSynced{core.PersistentVolumeClaims().Informer().HasSynced, core.PersistentVolumes().Informer().HasSynced},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) seePod(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" && len(runtime.ClaimNames(pod)) > 0 {
		c.queue.Add(pod.Spec.NodeName)
	}
}

// seeNode leaves out the many changes of a node that say nothing of volumes.
func (c *controller) seeNode(o, n *corev1.Node) {
	if o.Annotations[managed] != n.Annotations[managed] || ready(o) != ready(n) || outOfService(o) != outOfService(n) ||
		!slices.Equal(o.Status.VolumesInUse, n.Status.VolumesInUse) || !slices.Equal(o.Status.VolumesAttached, n.Status.VolumesAttached) {
		c.queue.Add(n.Name)
	}
}

// seeAttachment queues the node, and those that may wait for the volume.
func (c *controller) seeAttachment(va *storagev1.VolumeAttachment) {
	c.queue.Add(va.Spec.NodeName)
	if va.Spec.Source.PersistentVolumeName == nil {
		return
	}
	v, err := c.volumes.Get(*va.Spec.Source.PersistentVolumeName)
	if err != nil || v.Spec.ClaimRef == nil {
		return
	}
	for _, pod := range c.pods.Naming(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name) {
		c.seePod(pod)
	}
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	node, err := c.nodes.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err != nil {
		node = nil
	}
	var want map[string]attachable
	if node != nil {
		if node.Annotations[managed] != "true" {
			return 0, nil
		}
		want = c.wanted(node)
	}
	p := decide(node, want, c.held(name, want), c.elsewhere(name), c.clock.Now())
	var errs []error
	for _, h := range p.detach {
		errs = append(errs, c.detach(ctx, name, h))
	}
	for _, v := range p.attach {
		errs = append(errs, c.attach(ctx, name, v))
	}
	for at, v := range p.blocked {
		other, _, _ := strings.Cut(at, "/")
		c.tell(v.pod, corev1.EventTypeWarning, "FailedAttachVolume",
			fmt.Sprintf("Multi-Attach error for volume %q Volume is already exclusively attached to node %s and can't be attached to another", v.persistent, other))
	}
	if node != nil {
		c.report(want, c.onNode.Get(name))
		errs = append(errs, c.writeAttached(ctx, node, p.attached))
	}
	return p.again, errors.Join(errs...)
}

// wanted returns the volumes that the pods of a node need attached, by the name
// of their attachments.
func (c *controller) wanted(node *corev1.Node) map[string]attachable {
	want := map[string]attachable{}
	for _, pod := range c.pods.OnNode(node.Name) {
		if podstate.Terminal(pod) && node.Annotations[keepTerminated] != "true" {
			continue
		}
		for _, name := range runtime.ClaimNames(pod) {
			claim, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
			if err != nil || claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound {
				continue // its binding brings the pod back
			}
			v, err := c.volumes.Get(claim.Spec.VolumeName)
			if err != nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
				continue
			}
			driver, handle := source(v)
			if driver == "" || !c.needsAttach(driver) {
				continue
			}
			want[attachmentName(handle, driver, node.Name)] = attachable{v.Name, driver, handle, forSeveral(v.Spec.AccessModes), pod}
		}
	}
	return want
}

// source returns the CSI driver and handle of a volume, also of one whose kind
// moved to a CSI driver; empty for others.
func source(v *corev1.PersistentVolume) (driver, handle string) {
	if v.Spec.CSI == nil && translator.IsPVMigratable(v) {
		moved, err := translator.TranslateInTreePVToCSI(klog.Background(), v)
		if err != nil {
			return "", ""
		}
		v = moved
	}
	if v.Spec.CSI == nil {
		return "", ""
	}
	return v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle
}

// needsAttach reports whether a driver attaches at all; one that says nothing
// does.
func (c *controller) needsAttach(driver string) bool {
	d, err := c.drivers.Get(driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// held returns the attachments of the node that are this controller's.
func (c *controller) held(node string, want map[string]attachable) (out []held) {
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, va := range c.onNode.Get(node) {
		h := held{va: va}
		if a, ok := want[va.Name]; ok {
			h.unique = a.unique()
			delete(c.idle, va.Name)
		} else {
			if va.Spec.Source.PersistentVolumeName == nil {
				continue
			}
			v, err := c.volumes.Get(*va.Spec.Source.PersistentVolumeName)
			if err == nil {
				driver, handle := source(v)
				if attachmentName(handle, driver, node) != va.Name {
					continue // another's
				}
				h.unique = attachable{driver: driver, handle: handle}.unique()
			} else if !strings.HasPrefix(va.Name, "csi-") {
				continue
			}
			if c.idle[va.Name].IsZero() {
				c.idle[va.Name] = now
			}
			h.since = c.idle[va.Name]
		}
		out = append(out, h)
	}
	return out
}

// elsewhere tells on which other node a volume is attached or about to be.
func (c *controller) elsewhere(node string) func(attachable) string {
	return func(v attachable) string {
		for _, va := range c.ofPV.Get(v.persistent) {
			if va.Spec.NodeName != node {
				return va.Spec.NodeName
			}
		}
		return ""
	}
}

func (c *controller) attach(ctx context.Context, node string, v attachable) error {
	if !v.several {
		// The cache may not show yet what was just attached elsewhere.
		all, err := c.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list attachments of volume %s: %w", v.persistent, err)
		}
		for i := range all.Items {
			if s := all.Items[i].Spec; s.NodeName != node && s.Source.PersistentVolumeName != nil && *s.Source.PersistentVolumeName == v.persistent {
				return runtime.Silent(fmt.Errorf("volume %s is attached to node %s", v.persistent, s.NodeName))
			}
		}
	}
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(v.handle, v.driver, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: v.driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.persistent},
		},
	}
	if _, err := c.client.StorageV1().VolumeAttachments().Create(ctx, va, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("attach volume %s to node %s: %w", v.persistent, node, err)
	}
	return nil
}

// detach takes the volume from the node's status and deletes the attachment,
// unless the node's status, read anew, says that it is in use after all.
func (c *controller) detach(ctx context.Context, name string, h held) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	if err == nil {
		if !mayDetach(node, h, c.clock.Now()) {
			return nil // the cache will show it
		}
		if h.unique != "" {
			rest := slices.DeleteFunc(slices.Clone(node.Status.VolumesAttached), func(v corev1.AttachedVolume) bool { return v.Name == h.unique })
			if err := c.writeAttached(ctx, node, rest); err != nil {
				return err
			}
		}
	}
	err = c.client.StorageV1().VolumeAttachments().Delete(ctx, h.va.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(h.va.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("detach volume from node %s: %w", name, err)
	}
	c.mu.Lock()
	delete(c.idle, h.va.Name)
	c.mu.Unlock()
	return nil
}

// writeAttached brings the node's list of attached volumes up to date.
func (c *controller) writeAttached(ctx context.Context, node *corev1.Node, attached []corev1.AttachedVolume) error {
	if equality.Semantic.DeepEqual(node.Status.VolumesAttached, attached) {
		return nil
	}
	next := node.DeepCopy()
	next.Status.VolumesAttached = attached
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write attached volumes of node %s: %w", node.Name, err)
	}
	return nil
}

// report tells the pods how the attachments of their volumes went.
func (c *controller) report(want map[string]attachable, have []*storagev1.VolumeAttachment) {
	byName := map[string]*storagev1.VolumeAttachment{}
	for _, va := range have {
		byName[va.Name] = va
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		v, va := want[name], byName[name]
		switch {
		case va == nil:
		case va.Status.Attached:
			c.tell(v.pod, corev1.EventTypeNormal, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", v.persistent))
		case va.Status.AttachError != nil:
			c.tell(v.pod, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", v.persistent, va.Status.AttachError.Message))
		}
	}
}

// tell makes an event on a pod, unless it was the last one on that matter; an
// empty message forgets the pod.
func (c *controller) tell(pod *corev1.Pod, kind, reason, message string) {
	key := string(pod.UID)
	c.mu.Lock()
	again := strings.Contains(c.told[key], "\n"+message+"\n")
	switch {
	case message == "":
		delete(c.told, key)
	case !again && kind == corev1.EventTypeWarning:
		c.told[key] = "\n" + message + "\n"
	case !again:
		c.told[key] += "\n" + message + "\n"
	}
	c.mu.Unlock()
	// A pod that runs already was told by an earlier leader.
	if message != "" && !again && pod.Status.Phase == corev1.PodPending {
		c.events.Event(pod, kind, reason, message)
	}
}
