package attachdetach

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// maxWaitForUnmount is how long a node that is not ready keeps a volume that no
// pod there needs any more.
const maxWaitForUnmount = 6 * time.Minute

// attachable is a volume that must be attached to be mounted.
type attachable struct {
	persistent string // name of the PersistentVolume
	driver     string
	handle     string
	several    bool // may be attached to several nodes
	pod        *corev1.Pod
}

// unique is the name of the volume in the node's status.
func (a attachable) unique() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + a.driver + "^" + a.handle)
}

// attachmentName is what the driver's volume on the node is known by.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// held is an attachment of the node.
type held struct {
	va *storagev1.VolumeAttachment
	// unique is empty when the volume's PersistentVolume is gone.
	unique corev1.UniqueVolumeName
	// since is when it was seen first that nothing needs the attachment.
	since time.Time
}

// plan is what a node needs.
type plan struct {
	attach []attachable
	// blocked wait for the attachment of another node, whose name is given.
	blocked map[string]attachable
	detach  []held
	// waiting are due for detaching, but may still be mounted.
	waiting  []held
	attached []corev1.AttachedVolume // for the node's status
	again    time.Duration           // when to look again, 0 for never
}

// decide compares what a node's pods need with what is attached. elsewhere tells
// on which other node a volume of a driver is attached, or "".
func decide(node *corev1.Node, want map[string]attachable, have []held, elsewhere func(attachable) string, now time.Time) plan {
	p := plan{blocked: map[string]attachable{}}
	there := map[string]bool{}
	for _, h := range have {
		there[h.va.Name] = true
		if h.va.DeletionTimestamp != nil {
			continue // its end brings the node back
		}
		if _, ok := want[h.va.Name]; ok {
			if h.va.Status.Attached && h.unique != "" {
				p.attached = append(p.attached, corev1.AttachedVolume{Name: h.unique, DevicePath: h.va.Status.AttachmentMetadata["devicePath"]})
			}
			continue
		}
		if why := mayDetach(node, h, now); why {
			p.detach = append(p.detach, h)
			continue
		}
		p.waiting = append(p.waiting, h)
		if left := h.since.Add(maxWaitForUnmount).Sub(now); left > 0 && (p.again == 0 || left < p.again) {
			p.again = left
		}
		// What is mounted still is attached.
		if h.va.Status.Attached && h.unique != "" {
			p.attached = append(p.attached, corev1.AttachedVolume{Name: h.unique, DevicePath: h.va.Status.AttachmentMetadata["devicePath"]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		v := want[name]
		if there[name] {
			continue
		}
		if !v.several {
			if other := elsewhere(v); other != "" {
				p.blocked[other+"/"+name] = v
				continue
			}
		}
		p.attach = append(p.attach, v)
	}
	slices.SortFunc(p.attached, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	return p
}

// mayDetach reports whether a volume that nothing needs may go from the node.
func mayDetach(node *corev1.Node, h held, now time.Time) bool {
	if node == nil {
		return now.Sub(h.since) >= maxWaitForUnmount
	}
	return !inUse(node, h.unique) || outOfService(node) || forced(node, h, now)
}

// forced reports whether the node is not ready and had its time.
func forced(node *corev1.Node, h held, now time.Time) bool {
	return !ready(node) && now.Sub(h.since) >= maxWaitForUnmount
}

func inUse(node *corev1.Node, name corev1.UniqueVolumeName) bool {
	return slices.Contains(node.Status.VolumesInUse, name)
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// forSeveral reports whether the access modes let several nodes have the volume.
func forSeveral(modes []corev1.PersistentVolumeAccessMode) bool {
	return len(modes) == 0 || slices.Contains(modes, corev1.ReadWriteMany) || slices.Contains(modes, corev1.ReadOnlyMany)
}
