package persistentvolume

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// notices remembers what was said last about each object, so that it is not
// said again at every look.
type notices struct {
	events record.EventRecorder

	mu   sync.Mutex
	last map[types.UID]notice
}

func newNotices(events record.EventRecorder) *notices {
	return &notices{events: events, last: map[types.UID]notice{}}
}

func (n *notices) say(about interface {
	metav1.Object
	apiruntime.Object
}, what notice) {
	n.mu.Lock()
	again := n.last[about.GetUID()] == what
	n.last[about.GetUID()] = what
	n.mu.Unlock()
	if again {
		return
	}
	kind := corev1.EventTypeNormal
	if what.warning {
		kind = corev1.EventTypeWarning
	}
	n.events.Event(about, kind, what.reason, what.message)
}

func (n *notices) forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.last, uid)
}
